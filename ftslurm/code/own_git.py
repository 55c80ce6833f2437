"""Makes the copy of a run's code a repository of its own, at the commit from which the code was copied.

Scripts log `git rev-parse HEAD` and `git status`; setuptools_scm and GitPython ask git as well. Without a repository in
the copy, git fails, or answers for a repository around the run directory, which may have moved on.

The repository has the refs and the index of the original at submission. It reads the original's objects
(objects/info/alternates), and has its own copy of the commit and its trees: its id, its message and `git status` do not
depend on the original. Of the configuration it has only the address of the remote, without a password.
"""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

from ftslurm.code import provenance
from ftslurm.code.git_tree import OTHERS, GitError, ask, first_line, names


def give(root: str, copy: str) -> str:
    """Give the copy of a tree, and the submodules in it, their repositories.

    Args:
        root: the work tree that was copied.

    Returns:
        Why the copy has none; empty if it has one.
    """
    try:
        _give(root, copy)
    except (GitError, OSError) as error:
        shutil.rmtree(f"{copy}/.git", ignore_errors=True)
        return f"git in the copy does not know the commit: {error}"
    return ""


def _give(root: str, copy: str) -> None:
    git = Path(copy, ".git")

    def own(*words: str, given: bytes = b"") -> bytes:
        return ask(copy, f"--git-dir={git}", f"--work-tree={copy}", *words, given=given)

    def original(name: str) -> Path:
        return Path(root, os.fsdecode(ask(root, "rev-parse", "--git-path", name)).rstrip("\n"))

    hashes = first_line(root, "config", "extensions.objectFormat")
    own("init", "-q", "--template=", *([f"--object-format={hashes}"] if hashes else []))
    git.chmod(0o700)
    state = provenance.describe(root)
    head = first_line(root, "symbolic-ref", "-q", "HEAD")
    (git / "HEAD").write_bytes(os.fsencode(f"ref: {head}" if head else str(state["commit"])) + b"\n")
    (git / "packed-refs").write_bytes(ask(root, "for-each-ref", "--format=%(objectname) %(refname)"))
    (git / "objects/info/alternates").write_bytes(os.fsencode(original("objects")) + b"\n")
    # A split index has its shared part beside it.
    for file in (original("shallow"), original("index"), *original("index").parent.glob("sharedindex.*")):
        if file.exists():
            shutil.copyfile(file, git / file.name)
    if state["commit"]:
        commits = state["commit"], f"{state['commit']}^@"
        trees = ask(root, "rev-list", "--objects", "--no-walk", "--filter=blob:none", *commits)
        own("pack-objects", "-q", f"{git}/objects/pack/pack", given=trees)
    if state["remote"]:
        own("config", "remote.origin.url", state["remote"])

    kept = names(ask(root, "ls-files", "-z", "--cached"))
    links = [path for path in kept if _seen(f"{root}/{path}") != _seen(f"{copy}/{path}")]
    own("update-index", "-z", "--skip-worktree", "--stdin", given=os.fsencode("".join(f"{path}\0" for path in links)))
    ignored = {*names(own(*OTHERS))}.difference(names(ask(root, *OTHERS)))
    (git / "info").mkdir()
    (git / "info/exclude").write_bytes(
        os.fsencode("\n".join(["__pycache__", *(f"/{glob.escape(path)}" for path in ignored)]))
    )
    for path in kept:
        if os.path.lexists(f"{root}/{path}/.git") and path not in links:
            own("config", "submodule.active", ".")  # of all paths
            _give(f"{root}/{path}", f"{copy}/{path}")


def _seen(path: str) -> str | bool:
    """Return where a link leads, or whether there is a file."""
    return os.readlink(path) if os.path.islink(path) else os.path.lexists(path)
