"""What a run was made of is in its directory: git, packages, command line, without passwords."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_code_survey import git, write

from ftslurm.code import provenance
from ftslurm.config.schema import Config, absolute
from ftslurm.run.directory import RunDir
from ftslurm.submission import code_of_run


def test_commit_changes_and_packages_are_kept_and_secrets_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    write(tree, "train.py", "lib.py")
    git(tree, "init", "-q", "-b", "main")
    assert provenance.sentence(provenance.describe(str(tree))) == "no commit yet, 2 files changed"
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    git(tree, "remote", "add", "origin", "https://me:pass1word@host/x.git")
    assert provenance.sentence(provenance.describe(str(tree))).endswith(", nothing changed")
    secret = 's3cr3t"value'
    (tree / "lib.py").write_text(f"KEY = '{secret}'\n")
    write(tree, "ü.py")
    monkeypatch.setenv("A_KEY", secret)
    monkeypatch.setattr(sys, "argv", ["ftslurm", "job.env.B_TOKEN=abcdef9", f"job.args.x={secret}"])
    config = Config()
    config.job.script, config.job.secrets, config.cluster.kind = str(tree / "train.py"), ["A_KEY"], "local"
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    code_of_run.take(absolute(config), RunDir(run))
    made = json.loads((run / "provenance.json").read_text())
    assert made["command"] == ["ftslurm", "job.env.B_TOKEN=***", "job.args.x=***"]
    state = made["git"]
    head = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert state["commit"] == head.stdout.strip()
    assert (state["branch"], state["remote"], state["diff"]) == ("main", "https://***@host/x.git", "git.diff")
    assert (state["changed"], state["changed_count"]) == (["lib.py", "ü.py"], 2)
    diff = (run / "git.diff").read_text()
    assert "+KEY = '***'" in diff
    assert (run / "git.diff").stat().st_mode & 0o777 == 0o600
    packages = (run / "pip-freeze.txt").read_text().splitlines()
    assert any(line.startswith("torch==") for line in packages)
    assert made["python"]["command"] == [sys.executable]
    assert secret not in "".join(path.read_text() for path in run.iterdir() if path.is_file())

    child = tmp_path / "child"
    child.mkdir(mode=0o700)
    (child / "code").mkdir()
    provenance.write(config, child, *provenance.inherited(run))
    assert json.loads((child / "provenance.json").read_text())["git"] == state
    assert (child / "git.diff").read_text() == diff


def test_packages_are_listed_as_pip_freezes_them() -> None:
    vcs = json.dumps({"url": "https://u:p@h/x", "vcs_info": {"commit_id": "abc"}})
    local = json.dumps({"url": "file:///home/me/y", "dir_info": {"editable": True}})
    found = [
        ("b", "1", None),
        ("A_x", "2", "{"),
        ("x", "3", vcs),
        ("y", "4", local),
        ("b", "0", None),
        (None, None, None),
    ]
    assert provenance.freeze(found) == [
        "A_x==2",
        "b==1",
        "x @ git+https://u:p@h/x@abc",
        "-e /home/me/y  # y==4",
    ]
    own = provenance.freeze([("b", "1", None)])
    assert own == ["b==1"]


def test_the_packages_of_another_interpreter_are_asked_of_it_and_unknown_behind_a_prefix(tmp_path: Path) -> None:
    config = Config()
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    config.job.python = str(other)
    provenance.write(config, tmp_path, None, None)
    assert "==" in (tmp_path / "pip-freeze.txt").read_text()
    (tmp_path / "second").mkdir()
    config.job.python = ["nice", sys.executable]
    provenance.write(config, tmp_path / "second", None, None)
    assert json.loads((tmp_path / "second/provenance.json").read_text())["packages"] is None
    assert not (tmp_path / "second/pip-freeze.txt").exists()


def test_filters_that_a_trees_own_configuration_names_are_not_run(tmp_path: Path) -> None:
    tree, ran = tmp_path / "tree", tmp_path / "ran"
    write(tree, "a.txt", "b.txt")
    (tree / ".gitattributes").write_text("*.txt filter=evil\n")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")
    git(tree, "config", "filter.evil.clean", f"touch '{ran}'; cat")
    git(tree, "config", "filter.evil.required", "true")
    (tree / "a.txt").write_text("# A.txt\n")  # of the same size: git must compare the content
    state, diff = provenance.of_tree(str(tree))
    assert state["changed"] == ["a.txt"]
    assert b"+# A.txt" in (diff or b"")
    assert not ran.exists()
