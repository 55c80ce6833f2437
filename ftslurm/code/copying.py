"""Lays the copy of a run's code out. What is not copied is a link to the original: data, outputs, ignored files."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ftslurm.code import record, selection
from ftslurm.code.record import CodeRecord
from ftslurm.code.survey import Survey
from ftslurm.errors import EnvironmentProblem
from ftslurm.security import owned_files, sharing

_THREADS = 4  # a network file system answers several at once
MOST_LINKS = 1_000  # in one folder; with more it holds data that a script reads by another path


def keep(found: Survey, run: Path) -> None:
    """Copy the code of a run, and write its record, if it is to be copied.

    Raises:
        EnvironmentProblem: it cannot be read or written.
    """
    if not found.root:
        return
    copy = run / record.FOLDER
    try:
        _copy(found, copy)
        record.write(run, CodeRecord(found.root, found.script))
    except OSError as error:
        raise EnvironmentProblem(
            f"the code of the run cannot be copied to {copy}: {error}; job.snapshot=none copies nothing"
        ) from error


def hand_on(parent: Path, run: Path, code: CodeRecord) -> None:
    """Give a run the code of another one, with its repositories.

    Raises:
        EnvironmentProblem: it cannot be copied.
    """
    copy = run / record.FOLDER
    try:
        shutil.copytree(parent / record.FOLDER, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        record.write(run, code)
    except OSError as error:
        raise EnvironmentProblem(
            f"the code of {parent} cannot be copied to {copy}: {error}; --new-code takes the present code"
        ) from error


def _copy(found: Survey, copy: Path) -> None:
    """Copy the files and link the rest."""
    folders = {"."} | {str(folder) for path in found.files for folder in Path(path).parents}
    for folder in sorted(folders):
        (copy / folder).mkdir(mode=0o700)
        (copy / folder).chmod(sharing.FOLDER)  # the run directory says whether its group may enter

    before = _last_copy(copy)

    def one(path: str) -> None:
        earlier = None if before is None else str(before / path)
        _copy_one(os.path.join(found.root, path), str(copy / path), found.root, earlier)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(one, sorted(found.files)))
    if found.script is not None:
        os.lstat(copy / found.script)
    _link_rest(found, copy, folders)


def _last_copy(copy: Path) -> Path | None:
    """Return the newest copy of code in the folder of the runs, if it is our own: what is equal there exists once."""
    with suppress(OSError):  # a run was removed a moment ago
        runs = sorted(os.scandir(copy.parents[1]), key=lambda run: run.stat().st_mtime, reverse=True)
        others = (Path(run.path) / copy.name for run in runs)
        return next((path for path in others if path != copy and owned_files.is_own(path)), None)
    return None


def _copy_one(source: str, target: str, root: str, earlier: str | None = None) -> None:
    """Copy a file, read-only and with its time. A link stays one; within the tree it leads to the copy.

    Args:
        earlier: where an equal file may be, which becomes this one, too.
    """
    if os.path.islink(source):
        text, real = os.readlink(source), os.path.realpath(source)
        if not Path(real).is_relative_to(root):
            text = real
        elif os.path.isabs(text):
            text = os.path.relpath(real, os.path.realpath(os.path.dirname(source)))
        os.symlink(text, target)
        return
    with suppress(OSError):  # another file system, too many links to it, gone
        if earlier is not None and _equal(source, earlier):
            os.link(earlier, target)
            return
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        return  # deleted a moment ago: an editor's file, an output of another run
    except PermissionError:
        os.symlink(source, target)  # who cannot read it here does not read it in the run
        return
    os.chmod(target, 0o550 if os.stat(target).st_mode & stat.S_IXUSR else 0o440)


def _equal(source: str, copy: str) -> bool:
    ours, there = os.lstat(source), os.lstat(copy)
    same = stat.S_ISREG(there.st_mode) and (ours.st_mode ^ there.st_mode) & stat.S_IXUSR == 0
    return same and ours.st_size == there.st_size and filecmp.cmp(source, copy, shallow=False)


def _link_rest(found: Survey, copy: Path, folders: set[str]) -> None:
    """Link what lies beside copied files and is not copied. Modules that git ignores are copied."""
    around, copied = copy.resolve(), found.files | folders
    for folder in sorted(folders):
        links = 0
        for entry in os.scandir(os.path.join(found.root, folder)):
            path = os.path.normpath(os.path.join(folder, entry.name))
            if path in copied or entry.name in record.NEVER_COPIED:
                continue
            source = os.path.join(found.root, path)
            if around.is_relative_to(os.path.realpath(source)):
                continue  # the folder of the runs
            with suppress(FileNotFoundError):  # deleted a moment ago
                late = entry.is_file(follow_symlinks=False) and selection.late(
                    path, entry.stat().st_size, found.exclude
                )
                within = entry.is_symlink() and os.path.relpath(os.path.realpath(source), found.root) in copied
                if late or within:
                    _copy_one(source, str(copy / path), found.root)
                elif links < MOST_LINKS and (os.path.isfile(source) or os.path.isdir(source)):
                    links += 1
                    os.symlink(source, copy / path)
