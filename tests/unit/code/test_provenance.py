"""What a run was made of is in its directory: git, packages, command line, without passwords."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from test_code_survey import git, write

from ftslurm.code import provenance
from ftslurm.code.selection import excluded
from ftslurm.code.survey import survey
from ftslurm.config.compose import absolute
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir
from ftslurm.submission import code_of_run


def test_commit_and_packages_are_kept_and_secrets_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    write(tree, "train.py", "lib.py")
    git(tree, "init", "-q", "-b", "main")
    assert provenance.sentence(provenance.describe(str(tree))) == "no commit yet"
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    git(tree, "remote", "add", "origin", "https://me:pass1word@host/x.git")
    assert re.fullmatch("commit [0-9a-f]{9}", provenance.sentence(provenance.describe(str(tree))))
    secret = 's3cr3t"value'
    (tree / "lib.py").write_text(f"KEY = '{secret}'\n")
    write(tree, "ü.py")
    monkeypatch.setenv("A_KEY", secret)
    config = Config()
    config.job.script, config.job.secrets, config.cluster.kind = str(tree / "train.py"), ["A_KEY"], "local"
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    code_of_run.take(absolute(config), RunDir(run))
    made = json.loads((run / "provenance.json").read_text())
    state = made["git"]
    head = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert state["commit"] == head.stdout.strip()
    assert (state["branch"], state["remote"]) == ("main", "https://***@host/x.git")
    assert (run / "provenance.json").stat().st_mode & 0o777 == 0o600
    assert any(line.startswith("torch==") for line in made["packages"])
    assert made["python"]["command"] == [sys.executable]
    assert secret not in "".join(path.read_text() for path in run.iterdir() if path.is_file())

    child = tmp_path / "child"
    child.mkdir(mode=0o700)
    (child / "code").mkdir()
    provenance.write(config, child, provenance.inherited(run))
    assert json.loads((child / "provenance.json").read_text())["git"] == state


def test_packages_are_listed_as_pip_freezes_them(tmp_path: Path) -> None:
    url = json.dumps({"url": "https://h/x", "vcs_info": {"commit_id": "abc"}})
    found = [("one", "b", "1", ""), ("one", "A_x", "2", ""), ("one", "x", "3", url), ("two", "b", "0", "")]
    for folder, name, version, direct in found:
        info = tmp_path / folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if direct:
            (info / "direct_url.json").write_text(direct)
    installed = metadata.distributions(path=[str(tmp_path / "one"), str(tmp_path / "two")])
    assert provenance.packages(installed) == ["A_x==2", "b==1", f"x==3  # {url}"]


@pytest.mark.parametrize("python", ["/usr/bin/python3", ["nice", sys.executable]])
def test_the_packages_of_another_interpreter_are_unknown(tmp_path: Path, python: object) -> None:
    config = Config()
    config.job.python = python
    provenance.write(config, tmp_path, None)
    assert json.loads((tmp_path / "provenance.json").read_text())["packages"] is None


BY_NAME = (
    *(".env", ".env.local", "prod.env", "sub/.netrc", "_netrc", "credentials.json", "a/.aws/credentials", "token"),
    *("application_default_credentials.json", "client_secret_12.apps.json", "k.pem", "id_ed25519", "secrets.yaml"),
    *("service-account.json", "ID_RSA", ".pypirc", "kube/kubeconfig", "my.p12", "hf_token.txt", "x-secret.toml"),
    *(".envrc", "a\nb.env"),
)


@pytest.mark.parametrize("name", BY_NAME)
def test_files_with_the_name_of_a_secret_are_not_copied(name: str) -> None:
    assert excluded(name, ())


PROGRAMS = (
    *("filter.evil.clean", "filter.evil.process", "filter.evil.smudge", "diff.external", "diff.evil.command"),
    *("diff.evil.textconv", "core.fsmonitor", "core.pager", "pager.diff", "pager.status", "core.sshCommand"),
    *("core.editor", "core.askPass", "gpg.program", "credential.helper", "core.gitProxy", "merge.evil.driver"),
    *("interactive.diffFilter", "core.alternateRefsCommand", "remote.origin.uploadpack", "remote.origin.vcs"),
)


def test_no_configuration_of_a_tree_or_a_submodule_runs_anything(tmp_path: Path) -> None:
    ran, evil = tmp_path / "ran", tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho \"$0 $@\" >> '{ran}'; cat\n")
    evil.chmod(0o755)
    trees = [tmp_path / name for name in ("inner", "middle", "tree")]
    for tree, below in zip(trees, [None, *trees], strict=False):
        write(tree, "a.txt", "b.txt")
        (tree / ".gitattributes").write_text("*.txt filter=evil diff=evil merge=evil\n")
        git(tree, "init", "-q")
        if below is not None:
            git(tree, "submodule", "add", "-q", str(below), "sub")
        git(tree, "add", "-A")
        git(tree, "commit", "-qm", "x")
    top = trees[-1]
    git(top, "submodule", "update", "-q", "--init", "--recursive")
    for number, tree in enumerate((top, top / "sub", top / "sub/sub")):
        name = f"evil{number}"  # each has programs that only its own configuration names
        attributes = (tree / ".gitattributes").read_text().replace("evil", name)
        (tree / ".gitattributes").write_text(attributes)
        for key in PROGRAMS:
            git(tree, "config", key.replace("evil", name), str(evil))
        git(tree, "config", f"filter.{name}.required", "true")
        git(tree, "config", "extensions.partialClone", "origin")
        git(tree, "config", "remote.origin.promisor", "true")
        hooks = tree / "hooks"
        hooks.mkdir()
        for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction", "pre-auto-gc"):
            (hooks / hook).symlink_to(evil)
        git(tree, "config", "core.hooksPath", str(hooks))
        (tree / "a.txt").write_text("# A.txt\n")  # of the same size: git must compare the content
    ran.unlink(missing_ok=True)
    provenance.describe(str(top))
    config = Config()
    config.job.script = str(top / "train.py")
    write(top, "train.py")
    survey(absolute(config))
    assert not ran.exists(), ran.read_text()
