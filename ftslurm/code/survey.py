"""Finds out, before a run is submitted, which code it has and how that can be kept."""

from __future__ import annotations

import glob
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftslurm.code import git_tree, module_file
from ftslurm.code.record import CodeRecord
from ftslurm.code.selection import choose
from ftslurm.config.schema import Config, shipped
from ftslurm.words import plural

_PACKAGES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Survey(CodeRecord):
    """The code of a run that is not submitted yet. `files` are paths in `root`."""

    why: str = ""  # it is not copied
    files: frozenset[str] = frozenset()
    size: int = 0
    git: bool = False
    note: str = ""  # why it is no git tree, if git refuses to read it
    exclude: tuple[str, ...] = ()  # job.snapshot_exclude

    def sentence(self) -> str:
        """Return what happens with the code, for a person."""
        if self.root:
            where = f"git tree {self.root}" if self.git else f"{self.root}, and nothing outside it"
            size = f"{plural(len(self.files), 'file')}, {self.size / (1 << 20):.1f} MB"
            return f"{size}, of {where}{self.note}: every attempt runs the copy in the run directory"
        return f"not copied: {self.why}. Attempts run what the files contain when they start"


def survey(config: Config) -> Survey:
    """Return how the code of a run will be kept, without changing anything."""
    job = config.job
    if job.snapshot == "none":
        return Survey(why="job.snapshot=none")
    main = job.script if job.script is not None else module_file.find(config)
    if main is None:
        return Survey(why=f"job.module={job.module} is found only where the workers run")
    main = os.path.realpath(main)  # Python looks for modules in the folder to which a link leads
    if not os.path.isfile(main):
        return Survey(why=f"{main} is no file")
    if job.script is None and not _PACKAGES.isdisjoint(Path(main).parts):
        return Survey(why=f"job.module={job.module} is installed in {os.path.dirname(main)}")
    return _of_file(config, main)


def _of_file(config: Config, main: str) -> Survey:
    """Survey the git tree of a file, else its package or folder: of an example always its folder."""
    kept = None
    note = ""
    try:
        root = None if Path(main).parent == shipped("examples") else git_tree.top(os.path.dirname(main))
        if root is not None and not _is_broad(root):  # as dotfiles are
            kept, others = git_tree.files(root)
    except git_tree.GitError as error:
        note = f" (git refuses to read it: {error})"
    if kept is None or root is None:
        root = package_root(main)
        if _is_broad(root):
            return Survey(why=f"{root} holds all kinds of things: give the script a folder of its own{note}")
        try:
            others = git_tree.loose(root)
        except git_tree.GitError as error:
            hint = "if it holds much data, give the script a folder of its own"
            return Survey(why=f"{root} is no git tree{note}, and git cannot list its files: {error}; {hint}")

    script, saved = (os.path.relpath(os.path.realpath(one), root) for one in (main, config.checkpoint.dir or "/"))
    exclude = tuple(config.job.snapshot_exclude)
    if not Path(script).is_relative_to(saved):
        exclude += (f"/{glob.escape(saved)}",)
    sizes = _sizes(root, [*(kept or ()), *others, script])
    chosen = choose(sizes, frozenset(kept or ()), exclude)
    if isinstance(chosen, str):
        return Survey(why=chosen)
    files = chosen | {script}
    size = sum(sizes[path] for path in files)
    known = None if config.job.script is None else script
    return Survey(root, known, "", files, size, kept is not None, note, exclude)


def package_root(path: str) -> str:
    """Return the folder above the outermost package in which a file lies; its own folder, if that is no package."""
    folder = os.path.dirname(path)
    while os.path.exists(f"{folder}/__init__.py") and folder != "/":
        folder = os.path.dirname(folder)
    return folder


def _is_broad(folder: str) -> bool:
    """Return whether a folder holds all kinds of things: the home directory and those above it, /tmp and its like."""
    return os.stat(folder).st_mode & stat.S_ISVTX != 0 or Path.home().resolve().is_relative_to(folder)


def _sizes(root: str, paths: list[str]) -> dict[str, int]:
    """Return the sizes of the paths that are there: files and links."""
    found = {}
    for path in paths:
        with suppress(OSError):  # deleted, not yet committed; or not checked out
            there = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode):
                found[path] = there.st_size
    return found
