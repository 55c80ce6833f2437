"""Removes what runs that are over hold. In doubt a run goes on, and nothing of it is removed.

Nothing outside of a run directory is removed, and no link is followed: folders are opened without following links,
their identity is compared with what was judged, and shutil.rmtree walks by open folders (it is safe against links that
are put there meanwhile, `shutil.rmtree.avoids_symlink_attacks`).
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ftslurm.code import record
from ftslurm.config.schema import Config, user_name
from ftslurm.errors import FtslurmError
from ftslurm.run import checkpoint_owner, configuration
from ftslurm.run.entries import Entry, entries
from ftslurm.run.facts import Queue, ask_queue, look
from ftslurm.run.journal import last_line, number
from ftslurm.words import few

BULK = ("checkpoints", "code")  # what is large; the journal, the logs and the report are the rest
_LAST = ("events.jsonl", "config.yaml")  # an interrupted removal leaves a run that can be removed
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Judged:
    """A run directory, and whether it can be removed."""

    root: Path
    kept: str | None  # why it stays; None: it can be removed
    ended: float = 0.0  # in unix seconds; 0: it may be going
    identity: tuple[int, int] = (0, 0)


def survey(root: Path, before: float, keep: int = 0, named: Path | None = None) -> list[Judged]:
    """Judge every run directory below a folder, the newest first.

    Args:
        before: only runs that have ended before this time, in unix seconds.
        keep: so many of those that are over stay, the newest.
        named: the only run that may go, or None if all may.
    """
    found = entries(root)
    queue = ask_queue({user_name()}) if found else Queue()
    configs = {entry.run.root: _config(entry) for entry in found}
    judged = list[Judged]()
    for entry in found:
        one = _judge(entry, configs[entry.run.root], queue)
        if one.kept is None and named not in (None, one.root):
            one = replace(one, kept="it is not the one that is named")
        elif one.kept is None and keep > 0:
            keep -= 1
            one = replace(one, kept="one of the newest (--keep)")
        elif one.kept is None and one.ended >= before:
            one = replace(one, kept="it has ended too recently (--older-than)")
        judged.append(one)
    while (needed := _needed(judged, configs)) is not None:
        judged[judged.index(needed[0])] = replace(needed[0], kept=needed[1])
    return judged


def _config(entry: Entry) -> Config | str:
    """Return the configuration of a run of this user, or why there is none."""
    if not entry.own:
        return f"it belongs to {entry.user}, or others can write it"
    try:
        return configuration.of_run(entry.run)
    except FtslurmError as error:
        return str(error)


def _judge(entry: Entry, config: Config | str, queue: Queue) -> Judged:
    run = entry.run
    if isinstance(config, str):
        return Judged(run.root, config)
    standing = look(config, run, queue, wait=False, ended=True)
    if not standing.over or standing.left:
        return Judged(run.root, standing.left or "it is not over, or has been lost: ftslurm list")
    try:
        if files := record.written_since(run.root):
            return Judged(run.root, f"its script has written beside its code: move or remove {few(files, 3)}")
        found = run.root.lstat()
    except OSError as error:
        return Judged(run.root, str(error))
    ended = number(last_line(run.events) or {}, "time") or time.time()
    return Judged(run.root, None, ended, (found.st_dev, found.st_ino))


def _needed(judged: Sequence[Judged], configs: dict[Path, Config | str]) -> tuple[Judged, str] | None:
    """Return a run that is to be removed, although one that stays needs it, and why; None: there is none."""
    removed = {os.path.realpath(one.root): one for one in judged if one.kept is None}
    for root, one in removed.items():
        saver = checkpoint_owner.owner(one.root / "checkpoints")
        if saver is not None and os.path.realpath(saver.root) not in removed and _may_be(saver.root):
            return one, f"{saver.root} saves in its checkpoints"
        for other in judged:
            config = configs[other.root]
            if other.kept is None or isinstance(config, str):
                continue
            used = [config.checkpoint.dir or "/"]
            used += [config.internal.parent or "/"] * (not other.ended)  # later it has all that it needs
            if any(Path(os.path.realpath(path)).is_relative_to(root) for path in used):
                return one, f"{other.root} resumes from it"
    return None


def _may_be(path: Path) -> bool:
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


# --- sizes and removal ------------------------------------------------------------------------------------------------


def holds(root: Path, only: Collection[str] | None) -> bool:
    """Return whether a run directory has one of these names; None: any."""
    return only is None or any(os.path.lexists(root / name) for name in only)


def size(roots: Sequence[Path], only: Collection[str] | None = None) -> int:
    """Return the bytes that are freed: a file counts if all of its names are in these run directories.

    Args:
        only: names in the run directories; None: all of them.
    """
    seen = dict[tuple[int, int], list[int]]()
    tops = [root / name for root in roots for name in (only or [""]) if (root / name).exists()]
    for _, _, files, folder in (found for top in tops for found in os.fwalk(top, follow_symlinks=False)):
        for file in files:
            with suppress(OSError):
                known = os.stat(file, dir_fd=folder, follow_symlinks=False)
                seen.setdefault((known.st_dev, known.st_ino), [known.st_nlink, known.st_size])[0] -= 1
    return sum(size for left, size in seen.values() if left <= 0)


def remove(one: Judged, only: Collection[str] | None = None) -> None:
    """Remove a run directory, or only these names in it.

    Raises:
        OSError: something could not be removed, or another folder has taken its place.
    """
    with _opened(one.root.parent.resolve()) as above:
        with _opened(one.root.name, above) as inside:
            found = os.fstat(inside)
            if (found.st_dev, found.st_ino) != one.identity or found.st_uid != os.geteuid():
                raise OSError(f"{one.root} is another folder than before")
            names = sorted(os.listdir(inside), key=_LAST.__contains__)  # noqa: PTH208 of an open folder
            for name in names if only is None else set(names) & set(only):
                if stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                    shutil.rmtree(f"/proc/self/fd/{inside}/{name}")
                else:
                    os.unlink(name, dir_fd=inside)
        if only is None:
            os.rmdir(one.root.name, dir_fd=above)


@contextmanager
def _opened(path: str | Path, above: int | None = None) -> Iterator[int]:
    number = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield number
    finally:
        os.close(number)
