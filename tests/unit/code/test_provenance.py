"""What a run was made of is in its directory: git, packages, command line, without passwords."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_code_survey import git, write

from ftslurm.code import provenance
from ftslurm.code.selection import Rules
from ftslurm.code.survey import survey
from ftslurm.config.compose import absolute
from ftslurm.config.schema import Config
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


@pytest.mark.parametrize("python", ["/usr/bin/python3", ["nice", sys.executable]])
def test_the_packages_of_another_interpreter_are_unknown(tmp_path: Path, python: object) -> None:
    config = Config()
    config.job.python = python
    provenance.write(config, tmp_path, None, None)
    assert json.loads((tmp_path / "provenance.json").read_text())["packages"] is None
    assert not (tmp_path / "pip-freeze.txt").exists()


SECRET = "s3cr3tValueOfMine9"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "\n".join([f"b3BlbnNzaC1r{SECRET * 2}{n}aGVsbG8" for n in range(9)])
PEM += "\n-----END OPENSSH PRIVATE KEY-----\n"
BY_NAME = (
    *(".env", ".env.local", "prod.env", "sub/.netrc", "_netrc", "credentials.json", "a/.aws/credentials", "token"),
    *("application_default_credentials.json", "client_secret_12.apps.json", "k.pem", "id_ed25519", "secrets.yaml"),
    *("service-account.json", "ID_RSA", ".pypirc", "kube/kubeconfig", "my.p12", "hf_token.txt", "x-secret.toml"),
)
IN_TEXT = (
    f"WANDB_API_KEY={SECRET}",
    f"export HF_TOKEN='{SECRET}'",
    f'  "password": "{SECRET}",',
    f"db_password: {SECRET}",
    f"aws_secret_access_key = {SECRET}",
    f"machine h login me password {SECRET}",
    f"url = https://me:{SECRET}@host/x",
    f"Authorization: Bearer {SECRET}",
    f"x = connect('hf_{SECRET}')",
    f'{{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIE{SECRET}\\n-----END"}}',
    f'token = "{SECRET}"',
    f"key={SECRET}",
)
CODE = """
key = self.layers[0].key_proj(x)
key = "model.layers.0.weight"
tokens = tokenizer(text, key="x")
for key, value in state.items(): pass
password = getpass()
self.tokens_per_step = batch_size * 1024
sorted(found, key=lambda one: one.step)
"""


def test_no_form_of_a_secret_is_in_the_diff_and_code_stays_as_it_is(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree, "train.py", "plain.txt", "moved.env", "key.txt", "image.bin", "old/.env", *BY_NAME)
    (tree / "moved.env").write_text(f"A={SECRET}\n" * 20)
    (tree / "key.txt").write_text(PEM)
    (tree / "image.bin").write_bytes(b"\0\1" + SECRET.encode())
    (tree / "context.ini").write_text(f"a = 1\npassword = {SECRET}\nb = 2\n")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")
    for name in BY_NAME:
        (tree / name).write_text(f"{SECRET}\n")
    (tree / "plain.txt").write_text("\n".join(IN_TEXT) + "\n")
    (tree / "train.py").write_text(CODE)
    (tree / "context.ini").write_text(f"a = 1\npassword = {SECRET}\nb = 3\n")
    (tree / "key.txt").write_text(PEM.replace("-----END", "x\n-----END"))  # its context begins within the key
    (tree / "image.bin").write_bytes(b"\0\2" + SECRET.encode())
    git(tree, "mv", "old/.env", "harmless.txt")
    (tree / "harmless.txt").write_text("nothing\n")
    (tree / "moved.env").rename(tree / "moved.txt")
    git(tree, "add", "-N", "moved.txt")
    state, diff = provenance.of_tree(str(tree), Rules())
    text = (diff or b"").decode()
    hidden = text.replace(f"+A={SECRET}\n", "")  # without a telling name or form nothing tells it
    assert SECRET not in hidden, [line for line in hidden.splitlines() if SECRET in line]
    assert {*BY_NAME, "moved.env", "old/.env", "image.bin"} == set(state["left_out"])
    assert state["masked"] is True
    assert "".join(f"+{line}\n" for line in CODE.splitlines()) in text

    git(tree, "checkout", "-q", "--", "plain.txt", "context.ini", "key.txt")
    state, diff = provenance.of_tree(str(tree), Rules())
    assert state["masked"] is False
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(tree), str(clone))
    (tmp_path / "git.diff").write_bytes(diff or b"")
    git(clone, "apply", str(tmp_path / "git.diff"))
    assert (clone / "train.py").read_text() == CODE


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
    state, diff = provenance.of_tree(str(top), Rules())
    config = Config()
    config.job.script = str(top / "train.py")
    write(top, "train.py")
    survey(absolute(config))
    assert not ran.exists(), ran.read_text()
    assert set(state["changed"]) >= {".gitattributes", "a.txt", "sub"}
    assert b"+# A.txt" in (diff or b"")


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
    state, diff = provenance.of_tree(str(tree), Rules())
    assert state["changed"] == ["a.txt"]
    assert b"+# A.txt" in (diff or b"")
    assert not ran.exists()
