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
from contextlib import suppress
from pathlib import Path

from ftslurm.code import provenance
from ftslurm.code.git_tree import OTHERS, GitError, ask, names


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

    def original(name: str) -> str:
        return os.path.join(root, os.fsdecode(ask(root, "rev-parse", "--git-path", name)).rstrip("\n"))

    own("init", "-q", "--template=")
    git.chmod(0o700)
    for name in ("HEAD", "shallow"):
        with suppress(FileNotFoundError):
            shutil.copyfile(original(name), git / name)
    (git / "packed-refs").write_bytes(ask(root, "for-each-ref", "--format=%(objectname) %(refname)"))
    (git / "objects/info/alternates").write_bytes(os.fsencode(original("objects")) + b"\n")
    state = provenance.describe(root)
    if state["commit"]:
        trees = ask(
            root, "rev-list", "--objects", "--no-walk", "--filter=blob:none", state["commit"], f"{state['commit']}^@"
        )
        own("pack-objects", "-q", f"{git}/objects/pack/pack", given=trees)
    if state["remote"]:
        own("config", "remote.origin.url", state["remote"])

    own("update-index", "-z", "--index-info", given=ask(root, "ls-files", "-z", "--stage"))
    kept, deleted = (names(ask(root, "ls-files", "-z", which)) for which in ("--cached", "--deleted"))
    links = [path for path in kept if path not in deleted and _differs(f"{root}/{path}", f"{copy}/{path}")]
    own("update-index", "-z", "--skip-worktree", "--stdin", given=os.fsencode("".join(f"{path}\0" for path in links)))
    ignored = set(names(own(*OTHERS))) - set(names(ask(root, *OTHERS)))
    (git / "info").mkdir()
    (git / "info/exclude").write_bytes(
        os.fsencode("\n".join(["__pycache__", *(f"/{glob.escape(path)}" for path in ignored)]))
    )

    for path in kept:
        if os.path.lexists(f"{root}/{path}/.git") and path not in links:
            _give(f"{root}/{path}", f"{copy}/{path}")


def _differs(original: str, copy: str) -> bool:
    """Return whether the copy of a file is a link to the original, a changed link, or missing."""
    if not os.path.islink(copy):
        return not os.path.lexists(copy)
    return not os.path.islink(original) or os.readlink(original) != os.readlink(copy)


def hand_on(source: str, copy: str) -> None:
    """Give the copy of a copy the same repositories.

    Raises:
        OSError: one cannot be copied.
    """
    for git in Path(source).rglob(".git"):
        shutil.copytree(git, Path(copy, git.relative_to(source)))
