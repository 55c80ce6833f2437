"""Finds out, before a run is submitted, which code it has and how that can be kept."""

from __future__ import annotations

import glob
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ftslurm.code import git_tree, module_file
from ftslurm.code.record import CodeRecord
from ftslurm.code.selection import choose, is_code, is_module
from ftslurm.config.schema import Config, shipped
from ftslurm.run.directory import IGNORED
from ftslurm.security import owned_files
from ftslurm.words import plural

MOST_SEEN = 50_000  # entries of folders that are looked at where there is no git
MOST_IN_A_FOLDER = 2_000  # a folder with more entries holds data
_MOST_CONFIG = 1 << 20  # bytes of a file that is no module, where there is no git
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_NO_CODE = _PACKAGES | {"__pycache__", "node_modules", "checkpoints", "wandb"}


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
    if job.script is not None and Path(main).parent == shipped("examples"):
        folder = Path(main).parent
        return _of_files(config, main, str(folder), [path.name for path in folder.glob("*.py")])
    return _of_tree(config, main)


def _of_tree(config: Config, main: str) -> Survey:
    """Survey the git tree of a file, else its package or folder."""
    refused = ""
    try:
        root = git_tree.top(os.path.dirname(main))
        if root is not None and not _is_broad(root):  # as dotfiles are
            kept, others = git_tree.files(root)
            return _of_files(config, main, root, kept + _outside_environments(others), frozenset(kept))
    except git_tree.GitError as error:
        refused = f" (git refuses to read it: {error})"
    root = package_root(main)
    if _is_broad(root):
        return Survey(why=f"{root} holds all kinds of things: give the script a folder of its own{refused}")
    found = _walk(root)
    if found is None:
        return Survey(why=f"{root} has more than {MOST_SEEN} entries and is no git tree{refused}")
    return replace(_of_files(config, main, root, found), note=refused)


def _of_files(config: Config, main: str, root: str, paths: list[str], tracked: frozenset[str] | None = None) -> Survey:
    """Survey the files at these paths. `tracked` are those that git keeps, or None without a git tree."""
    git = tracked is not None
    script, saved = (os.path.relpath(os.path.realpath(one), root) for one in (main, config.checkpoint.dir or "/"))
    exclude = (
        *config.job.snapshot_exclude,
        *([] if Path(script).is_relative_to(saved) else [f"/{glob.escape(saved)}"]),
    )
    sizes = _sizes(root, [*paths, script], all_kinds=git)
    chosen = choose({path: size for path, size in sizes.items() if path != script}, tracked or frozenset(), exclude)
    if isinstance(chosen, str):
        return Survey(why=chosen)
    files = chosen | {script}
    return Survey(
        root=root,
        script=script if config.job.script is not None else None,
        files=files,
        size=sum(sizes[path] for path in files),
        git=git,
        exclude=exclude,
    )


def package_root(path: str) -> str:
    """Return the folder above the outermost package in which a file lies; its own folder, if that is no package."""
    folder = os.path.dirname(path)
    while os.path.exists(os.path.join(folder, "__init__.py")) and folder != "/":
        folder = os.path.dirname(folder)
    return folder


def _outside_environments(paths: list[str]) -> list[str]:
    """Return the paths that lie in no environment of Python."""
    tops = tuple(path.removesuffix("pyvenv.cfg") for path in paths if path.endswith("/pyvenv.cfg"))
    return [path for path in paths if not path.startswith(tops)]


def _is_broad(folder: str) -> bool:
    """Return whether a folder holds all kinds of things: the home directory and those above it, /tmp and its like."""
    return os.stat(folder).st_mode & stat.S_ISVTX != 0 or Path.home().resolve().is_relative_to(folder)


def _walk(root: str) -> list[str] | None:
    """Return the files of code and configuration below a folder, or None if there are too many."""
    found, seen = list[str](), 0
    for folder, folders, names in os.walk(root):
        here = len(folders) + len(names)
        seen += here
        if seen > MOST_SEEN:
            return None
        if here > MOST_IN_A_FOLDER and folder != root:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not _holds_no_code(folder, name)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names if is_code(name)]
    return found


def _holds_no_code(above: str, name: str) -> bool:
    folder = os.path.join(above, name)
    if name.startswith(".") or name in _NO_CODE or os.path.exists(f"{folder}/pyvenv.cfg"):
        return True
    with suppress(OSError), owned_files.open_file(Path(folder, ".gitignore")) as file:
        return file.read(len(IGNORED) + 1) == IGNORED  # a run directory, from its first moment
    return False


def _sizes(root: str, paths: list[str], all_kinds: bool) -> dict[str, int]:
    """Return the sizes of the paths that are there: files and links.

    Args:
        all_kinds: also of large files that are no modules.
    """
    found = {}
    for path in paths:
        with suppress(OSError):  # deleted, not yet committed; or not checked out
            there = os.lstat(os.path.join(root, path))
            wanted = all_kinds or is_module(path) or there.st_size <= _MOST_CONFIG
            if wanted and (stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode)):
                found[path] = there.st_size
    return found
