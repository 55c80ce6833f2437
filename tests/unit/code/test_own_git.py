"""The copy of the code is a repository that answers as the original did at submission, whatever becomes of that."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ftslurm.code import copying, own_git, record
from ftslurm.code.survey import survey
from ftslurm.config.compose import absolute
from ftslurm.config.schema import Config

QUESTIONS = (
    "rev-parse HEAD",
    "rev-parse --abbrev-ref HEAD",
    "rev-parse --show-prefix",
    "log -1 --format=%s",
    "describe --tags --long --dirty --always",
    "status --porcelain --ignore-submodules=none",
    "diff --stat",
    "diff --cached --name-status",
    "tag --points-at HEAD",
    "for-each-ref --contains HEAD refs/heads",
    "submodule status",
)
IGNORED = "data/\nout*\nlink_to_data\n*.log\n"
SUBMODULE_QUESTIONS = ("rev-parse HEAD", "status --porcelain", "describe --tags --always --dirty", "log -1 --format=%s")


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", "-C", str(folder), *own, *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr}"


def answers(tree: Path) -> dict[str, str]:
    said = {asked: git(tree, *asked.split()) for asked in QUESTIONS}
    if (tree / "sub").is_dir():
        said |= {f"sub: {asked}": git(tree / "sub", *asked.split()) for asked in SUBMODULE_QUESTIONS}
    return said


def commit(tree: Path, message: str, **files: str) -> None:
    for name, text in files.items():
        (tree / f"{name}.py").write_text(text)
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", message)


@pytest.fixture(name="origin")
def an_origin(tmp_path: Path) -> Path:
    """Return a repository with a history, tags, a submodule, links, and files of all kinds."""
    sub, origin = tmp_path / "library", tmp_path / "origin"
    for tree in (sub, origin):
        git(tmp_path, "init", "-q", str(tree))
    commit(sub, "sub", lib="lib = 1\n")
    git(sub, "tag", "v0.1")
    commit(sub, "sub, second", lib="lib = 2\n")
    commit(origin, "first", train="train = 1\n", edited="", deleted="", staged="", mode="")
    git(origin, "tag", "-a", "v1.0", "-m", "one")
    git(origin, "submodule", "add", "-q", str(sub), "sub")
    (origin / ".gitignore").write_text(IGNORED)
    (origin / "absolute.py").symlink_to(origin / "train.py")
    (origin / "outside.py").symlink_to(Path("..") / "elsewhere.py")
    (origin / "moved.py").symlink_to("train.py")
    (tmp_path / "elsewhere.py").write_text("")
    (origin / "ümläut [1]* name.py").write_text("")
    (origin / "weights.bin").write_bytes(b"\0" * (21 << 20))  # too large for the copy
    (origin / ".env").write_text("TOKEN=1\n")
    commit(origin, "second: a subject with 'quotes'")
    return origin


def make_dirty(tree: Path) -> None:
    (tree / "edited.py").write_text("edited = 1\n")
    (tree / "deleted.py").unlink()
    (tree / "staged.py").write_text("staged = 1\n")
    git(tree, "add", "staged.py")
    (tree / "mode.py").chmod(0o755)
    (tree / "moved.py").unlink()
    (tree / "moved.py").symlink_to("edited.py")
    (tree / "new file.py").write_text("")
    for name in ("data", "outputs", "outputs [2]"):
        (tree / name).mkdir()
        (tree / name / "x.npy").write_text("")
    (tree / "a.log").write_text("")
    (tree / "link_to_data").symlink_to("data")
    if (tree / "sub/lib.py").exists():
        (tree / "sub/lib.py").write_text("lib = 3\n")


def copy_of(tree: Path, run: Path) -> Path:
    config = Config()
    config.job.script = str(tree / "train.py")
    config.run.root = str(run.parent)
    run.mkdir(mode=0o700, parents=True)
    found = survey(absolute(config))
    copying.keep(found, run)
    copy = run / record.FOLDER
    assert own_git.give(found.root, str(copy)) == ""
    return copy


def a_clone(origin: Path, *words: str) -> Path:
    tree = origin.parent / "tree"
    git(origin.parent, "clone", "-q", *words, f"file://{origin}", str(tree))
    git(tree, "submodule", "update", "--init", "-q")
    return tree


def a_work_tree(origin: Path) -> Path:
    tree = origin.parent / "tree"
    git(origin, "worktree", "add", "-q", "-b", "experiment", str(tree))
    git(tree, "submodule", "update", "--init", "-q")
    return tree


def detached(origin: Path) -> Path:
    git(origin, "checkout", "-q", "--detach", "HEAD")
    return origin


def sparse(origin: Path) -> Path:
    git(origin, "sparse-checkout", "set", "--no-cone", "/*", "!weights.bin", "!edited.py")
    return origin


def packed(origin: Path) -> Path:
    git(origin, "gc", "-q")
    return origin


def split(origin: Path) -> Path:
    git(origin, "update-index", "--split-index")
    return origin


def unborn(origin: Path) -> Path:
    tree = origin.parent / "tree"
    git(origin.parent, "init", "-q", str(tree))
    (tree / "train.py").write_text("")
    git(tree, "add", "-A")
    return tree


def sha256(origin: Path) -> Path:
    tree = origin.parent / "tree"
    git(origin.parent, "init", "-q", "--object-format=sha256", str(tree))
    (tree / ".gitignore").write_text(IGNORED)
    commit(tree, "first", train="", edited="", deleted="", staged="", mode="", moved="")
    git(tree, "tag", "v2.0")
    return tree


KINDS = {
    "plain": lambda origin: origin,
    "clone": a_clone,
    "shallow": lambda origin: a_clone(origin, "--depth=1"),
    "shared": lambda origin: a_clone(origin, "--reference", str(origin)),
    "partial": lambda origin: a_clone(origin, "--filter=blob:none"),
    "submodule": lambda origin: a_clone(origin) / "sub",
    **{kind.__name__: kind for kind in (a_work_tree, detached, sparse, packed, split, unborn, sha256)},
}


@pytest.mark.parametrize("dirty", [False, True], ids=["clean", "dirty"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_answers_as_the_original_did(origin: Path, kind: str, dirty: bool) -> None:
    tree = KINDS[kind](origin)
    if kind == "submodule":
        (tree / "train.py").write_text("")
    if dirty and (tree / "edited.py").exists():
        make_dirty(tree)
        (tree / "intended.py").write_text("intended = 1\n")
        git(tree, "add", "-N", "intended.py")
    before = answers(tree)
    copy = copy_of(tree, tree / "runs" / "r")
    assert answers(copy) == before
    commit(tree, "later", train="train = 2\n")
    git(tree, "tag", "-f", "v1.0")
    assert answers(copy) == before


def test_a_run_that_resumes_has_the_same_answers(origin: Path) -> None:
    make_dirty(origin)
    before = answers(origin)
    copy = copy_of(origin, origin.parent / "runs" / "one")
    second = origin.parent / "runs" / "two"
    second.mkdir(mode=0o700)
    copying.hand_on(copy.parent, second, record.read(copy.parent))
    shutil.rmtree(copy.parent)
    commit(origin, "later", train="train = 2\n")
    assert answers(second / record.FOLDER) == before


def test_the_commit_is_known_without_the_original(origin: Path) -> None:
    """A container does not show the original, and a user may remove it."""
    make_dirty(origin)
    before = answers(origin)
    copy = copy_of(origin, origin.parent / "runs" / "r")
    shutil.rmtree(origin)
    after = answers(copy)
    for asked in (
        "rev-parse HEAD",
        "log -1 --format=%s",
        "status --porcelain --ignore-submodules=none",
        "sub: rev-parse HEAD",
        "sub: status --porcelain",
    ):
        assert after[asked] == before[asked], asked


def test_no_password_and_no_program_is_copied(origin: Path) -> None:
    for name, value in {
        "remote.origin.url": "https://me:hunter2@example.com/a b.git",
        "http.extraHeader": "Authorization: hunter2",
        "core.fsmonitor": "touch /tmp/ran",
        "filter.x.clean": "touch /tmp/ran",
    }.items():
        git(origin, "config", name, value)
    copy = copy_of(origin, origin.parent / "runs" / "r")
    config = (copy / ".git/config").read_text()
    assert "hunter2" not in config
    assert "touch" not in config
    assert git(copy, "config", "remote.origin.url").strip() == "https://***@example.com/a b.git"
    assert sum(len(names) + len(folders) for _, folders, names in os.walk(copy / ".git")) <= 20


def test_a_repository_that_git_cannot_read_leaves_no_half_of_one(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "tree").mkdir()
    assert "does not know the commit" in own_git.give(str(tmp_path / "tree"), str(tmp_path / "copy"))
    assert not list((tmp_path / "copy").iterdir())
