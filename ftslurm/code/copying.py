"""Lays the copy of a run's code out. What is not copied is a link to the original: data, outputs, ignored files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ftslurm.code import own_git, record, selection
from ftslurm.code.record import CodeRecord
from ftslurm.code.survey import Survey
from ftslurm.errors import EnvironmentProblem
from ftslurm.security import sharing

_THREADS = 4  # a network file system answers several at once
MOST_LINKS = 1_000  # in one folder; with more it holds data that a script reads by another path
_NEVER = frozenset({".git", "__pycache__"})


def keep(found: Survey, run: Path) -> None:
    """Copy the code of a run, and write its record, if it is to be copied.

    Raises:
        EnvironmentProblem: it cannot be read or written.
    """
    if not found.root:
        return
    try:
        _copy(found, run / record.FOLDER)
        record.write(run, CodeRecord(found.root, found.script))
    except OSError as error:
        raise EnvironmentProblem(
            f"the code of the run cannot be copied to {run / record.FOLDER}: {error.strerror} "
            f"({error.filename or run}); job.snapshot=none copies nothing"
        ) from error


def hand_on(parent: Path, run: Path, code: CodeRecord) -> None:
    """Give a run the code of another one.

    Raises:
        EnvironmentProblem: it cannot be copied.
    """
    try:
        source = str(parent / record.FOLDER)
        _lay_out(source, frozenset(_contents(source)), run / record.FOLDER, keep_links=True)
        own_git.hand_on(source, str(run / record.FOLDER))
        record.write(run, code)
    except OSError as error:
        raise EnvironmentProblem(
            f"the code of {parent} cannot be copied to {run / record.FOLDER}: {error.strerror} ({error.filename}); "
            f"--new-code takes the present code"
        ) from error


def _contents(root: str) -> Iterator[str]:
    """Yield every file and link below a folder; links are not followed."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NEVER]
        for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            yield os.path.relpath(os.path.join(folder, name), root)


def _copy(found: Survey, target: Path) -> None:
    """Copy the files and link the rest."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        _lay_out(found.root, found.files, part)
        if found.script is not None:
            os.lstat(part / found.script)
        _link_rest(found, str(part))
        part.rename(target)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _lay_out(root: str, paths: frozenset[str], target: Path, keep_links: bool = False) -> None:
    folders = sorted({folder for path in paths for folder in _above(path)})
    sharing.make_folder(target)
    shared = sharing.is_shared(target)
    for folder in folders:
        made = target / folder
        made.mkdir(mode=0o700)
        if shared:
            made.chmod(sharing.FOLDER)

    def one(path: str) -> None:
        _copy_one(os.path.join(root, path), str(target / path), root, keep_links)

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(one, sorted(paths)):
            pass


def _above(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _copy_one(source: str, target: str, root: str, keep_links: bool) -> None:
    """Copy a file, read-only and with its time. A link stays one; within the tree it leads to the copy."""
    if os.path.islink(source):
        text, real = os.readlink(source), os.path.realpath(source)
        if not keep_links and not (real + "/").startswith(root.rstrip("/") + "/"):
            text = real
        elif not keep_links and os.path.isabs(text):
            text = os.path.relpath(real, os.path.realpath(os.path.dirname(source)))
        os.symlink(text, target)
        return
    try:
        there = os.stat(source)
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "it is no file", source)
        shutil.copyfile(source, target)
    except FileNotFoundError:
        if keep_links:
            raise
        return  # deleted a moment ago: an editor's file, an output of another run
    except PermissionError:
        os.symlink(source, target)  # who cannot read it here does not read it in the run
        return
    os.utime(target, ns=(there.st_atime_ns, there.st_mtime_ns))
    os.chmod(target, 0o550 if there.st_mode & stat.S_IXUSR else 0o440)


def _link_rest(found: Survey, part: str) -> None:
    """Link what lies beside copied files and is not copied. Modules that git ignores are copied."""
    around = os.path.realpath(part)
    real = {""} | {folder for path in found.files for folder in _above(path)}
    copied = found.files | real
    for folder in sorted(real):
        links = 0
        for entry in os.scandir(os.path.join(found.root, folder)):
            path = os.path.join(folder, entry.name)
            if path in found.files or path in real or entry.name in _NEVER:
                continue
            if around.startswith(os.path.realpath(entry.path) + "/"):
                continue  # the folder of the runs
            target = os.path.join(part, path)
            with suppress(FileNotFoundError):  # deleted a moment ago
                if entry.is_file(follow_symlinks=False) and selection.late(path, entry.stat().st_size, found.exclude):
                    _copy_one(entry.path, target, found.root, keep_links=False)
                elif entry.is_symlink() and os.path.relpath(os.path.realpath(entry.path), found.root) in copied:
                    _copy_one(entry.path, target, found.root, keep_links=False)  # a link within the copy
                elif links < MOST_LINKS and (os.path.isfile(entry.path) or os.path.isdir(entry.path)):
                    links += 1
                    os.symlink(entry.path, target)
