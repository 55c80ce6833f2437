"""The layout of checkpoints on disk: names, manifests, which of them are complete, which may be deleted. No torch.

    DIR/step-00000100/              a checkpoint, made complete by one rename
    DIR/step-00000100/manifest.json written last: format, step, its writer, size and checksums of every other file
    DIR/.saving-00000100-RUN-GROUP-ATTEMPT-TOKEN/    one that is being written, or was when its group died
    DIR/.removed-...                one that is being deleted
    DIR/positions/                  the position of each rank of each group in its data (data_offsets.py)

A folder that ftslurm has not written is *foreign*. One that it has written is *damaged* when its manifest cannot be
read, or a file is missing or has another size than the manifest says. Neither counts as a checkpoint. Checksums, one
for each block of a file, are compared when it is restored (files.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftslurm.security import owned_files

FORMAT = "ftslurm-checkpoint-1"
MANIFEST = "manifest.json"
POSITIONS = "positions"
MAX_MANIFEST = 64 << 20  # bytes; half a million files need no more
BLOCK = 1 << 20  # bytes that a checksum is for
_TREE = re.compile(r"tree(-\d+)?\.pickle", re.ASCII)  # only ftslurm writes these
_SAVING = re.compile(r"\.saving-\d+-(?P<run>\w+)-(?P<group>\d+)-(?P<attempt>\d+)-\w+", re.ASCII)


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: all its files exist and have the size that was written."""

    step: int
    path: Path
    run: str = field(default="", compare=False)  # the id of the run that wrote it, "" if unknown


@dataclass(frozen=True)
class Ignored:
    """A folder named like a checkpoint that is not usable as one, and the reason for a person."""

    path: Path
    reason: str
    foreign: bool  # nothing in it was written by ftslurm
    doubtful: bool = False  # its writer is unknown: it must be neither skipped nor deleted


@dataclass(frozen=True)
class Writer:
    """The attempt of a group that saves."""

    run: str
    group: int
    attempt: int


def name_of(step: int) -> str:
    """Return the name of a step's folder: 100 -> step-00000100."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step of a folder's name, None for a name that `name_of` does not give."""
    digits = name.removeprefix("step-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        return None
    return int(digits) if name == name_of(int(digits)) else None


def survey(folder: Path, upto: int | None = None) -> Iterator[Saved | Ignored]:
    """Yield every folder named like a checkpoint, the highest step first; each is inspected when it is yielded.

    Args:
        upto: leave out those of a higher step.

    Raises:
        OSError: the folder cannot be read. A missing one holds nothing.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    steps = sorted((step for name in names if (step := step_of(name)) is not None), reverse=True)
    for step in steps:
        if upto is None or step <= upto:
            yield look(folder / name_of(step), step)


def look(path: Path, step: int) -> Saved | Ignored:
    """Return whether a folder is a complete checkpoint of this step (Saved), or why it is not (Ignored)."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            why = "it is a symbolic link, and links are not followed: put the folder itself in its place"
            return Ignored(path, why, foreign=False, doubtful=True)
        if not stat.S_ISDIR(mode):
            return Ignored(path, "it is not a folder", foreign=True)
        read = read_manifest(path)
    except FileNotFoundError:
        return _without_manifest(path, f"it has no {MANIFEST}")
    except OSError as error:
        return _without_manifest(path, f"it cannot be read: {error.strerror}")
    except (ValueError, RecursionError):
        return _without_manifest(path, f"{MANIFEST} is not valid JSON")
    if not isinstance(read, dict) or read.get("format") != FORMAT:
        why = f"{MANIFEST} is of another program, or another version of ftslurm"
        found = _without_manifest(path, why)
        return Ignored(path, why, foreign=True) if found.doubtful else found
    if read.get("step") != step or isinstance(read["step"], bool):
        return Ignored(path, f"{MANIFEST} says step {read.get('step')!r:.40}", foreign=False)
    files = read.get("files")
    if not isinstance(files, dict) or not files:
        return Ignored(path, f"{MANIFEST} lists no files", foreign=False)
    torn = next((text for name, size in files.items() if (text := _torn(path, name, size))), None)
    run = read.get("run")
    return Ignored(path, torn, foreign=False) if torn else Saved(step, path, run if isinstance(run, str) else "")


def newest(folder: Path, upto: int | None = None) -> Saved | None:
    """Return the complete checkpoint of the highest step, None if there is none or the folder cannot be read."""
    with contextlib.suppress(OSError):
        for found in survey(folder, upto):
            if isinstance(found, Saved):
                return found
    return None


def damaged(folder: Path) -> Ignored | None:
    """Return the damaged checkpoint of the highest step, None if there is none or the folder cannot be read."""
    with contextlib.suppress(OSError):
        for found in survey(folder):
            if isinstance(found, Ignored) and not found.foreign:
                return found
    return None


def only_foreign(folder: Path) -> bool:
    """Return whether the folder holds files, but no checkpoint of ftslurm: the script saves in a format of its own.

    Unfinished checkpoints and the positions in the data do not count as files; a damaged checkpoint counts as one of
    ftslurm.
    """
    foreign = False
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return False
    for name in names:
        if name.startswith(".") or name == POSITIONS:
            continue
        step = step_of(name)
        found = look(folder / name, step) if step is not None else None
        if isinstance(found, Saved) or (found and not found.foreign and not found.doubtful):
            return False
        foreign = True
    return foreign


def manifest(step: int, writer: Writer, ranks: int, files: Mapping[str, int], crc32: Mapping[str, list[int]]) -> bytes:
    """Return the text of the manifest, the file that makes a folder a checkpoint.

    Args:
        files: name and size in bytes of every other file.
        crc32: the checksums of the blocks of each.
    """
    text = {"format": FORMAT, "step": step, "run": writer.run, "group": writer.group, "attempt": writer.attempt}
    return json.dumps({**text, "ranks": ranks, "files": dict(files), "crc32": dict(crc32)}).encode()


def saving_name(step: int, writer: Writer, token: str) -> str:
    """Return the name of the folder in which a checkpoint is written; the token makes it unique."""
    return f".saving-{step:08d}-{word(writer.run)}-{writer.group}-{writer.attempt}-{token}"


def is_dead(name: str, me: Writer, idle_s: float, patience_s: float) -> bool:
    """Return whether a dot folder is abandoned.

    Earlier attempts of our own group of this run are over: a group has one live attempt at a time. Another group may be
    alive, so its folder is abandoned only when it has not changed for patience_s.

    Args:
        idle_s: seconds since the folder was changed last.
        patience_s: seconds after which an idle folder of another group is abandoned.
    """
    if name.startswith(".removed-"):
        return True
    match = _SAVING.fullmatch(name)
    if match is None:
        return False
    if (match["run"], int(match["group"])) == (word(me.run), me.group):
        return int(match["attempt"]) < me.attempt or idle_s > patience_s
    return idle_s > patience_s


def is_due(step: int, every: int, newest: int) -> bool:
    """Return whether to save after a committed step: at every multiple of `every`, or when the newest is that old.

    The second rule catches up on a save that its group did not survive. `newest` may also be a failed attempt.
    """
    return step % every == 0 or step - newest >= every


def to_prune(complete: Iterable[Saved], step: int, keep: int) -> list[Saved]:
    """Return the checkpoints to delete after `step` was saved, so that the last `keep` up to it stay; keep=0: none.

    A checkpoint of a higher step is neither deleted nor counted: it could not be read, the training was restored from
    an older one, and it will be overwritten when the training reaches its step again.
    """
    if keep < 1:
        return []
    older = sorted((saved for saved in complete if saved.step <= step), key=lambda saved: saved.step, reverse=True)
    return older[keep:]


def sync(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read_manifest(path: Path) -> Any:
    """Return what the manifest of a checkpoint says.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with owned_files.open_file(path / MANIFEST) as file:
        return json.loads(file.read(MAX_MANIFEST))


def _without_manifest(path: Path, why: str) -> Ignored:
    """Judge a folder without a usable manifest by the names of its other files."""
    try:
        names = [found.name for found in path.iterdir()]
    except FileNotFoundError:
        return Ignored(path, "it has just been removed", foreign=True)
    except OSError as error:
        return Ignored(path, f"it cannot be read: {error.strerror}", foreign=False, doubtful=True)
    if any(_TREE.fullmatch(name) for name in names):
        return Ignored(path, why, foreign=False)
    if any(name == ".metadata" or name.endswith(".distcp") for name in names):  # so does any script that uses DCP
        return Ignored(path, why, foreign=False, doubtful=True)
    return Ignored(path, f"{why}: another program has written it", foreign=True)


def _torn(folder: Path, name: str, size: object) -> str | None:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        return f"{MANIFEST} names a file {name!r:.60}"
    if type(size) is not int:
        return f"{MANIFEST} gives {name} the size {size!r:.40}"
    try:
        found = (folder / name).lstat()
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"{name} cannot be inspected: {error}"
    if not stat.S_ISREG(found.st_mode):
        return f"{name} is not a regular file"
    if found.st_size != size:
        return f"{name} has {found.st_size} bytes, {size} were written"
    return None


def word(text: str) -> str:
    """Return a run's id as it stands in names."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"


def steps(folder: Path) -> list[int]:
    """Return the steps of all folders named like a checkpoint, complete or not."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return [step for name in names if (step := step_of(name)) is not None]
