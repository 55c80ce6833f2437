"""Which checkpoints lie in a folder, and which of them can be trusted? The layout on disk; no torch, no script.

    DIR/step-00000100/              a checkpoint: appears by one rename when it is whole
    DIR/step-00000100/manifest.json written last: format, step, who saved it, size and checksum of every other file
    DIR/.saving-00000100-RUN-GROUP-ATTEMPT-TOKEN/    one that is being written, or was when its group died
    DIR/.removed-...                one that is being deleted
    DIR/positions/                  where each rank of each group is in its data (`positions.py`)

A folder of another shape is *foreign*. One of ours is *damaged* when its manifest cannot be read, or a file is missing
or has another size than the manifest says. Neither counts as a checkpoint. Checksums are compared when it is restored.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftslurm.security import owned_files

FORMAT = "ftslurm-checkpoint-1"
MANIFEST = "manifest.json"
POSITIONS = "positions"
MAX_MANIFEST = 64 << 20  # bytes; half a million files need no more
_BLOCK = 1 << 20  # bytes read at a time
_TREE = re.compile(r"tree(-\d+)?\.pickle", re.ASCII)  # nobody but us writes these
_SAVING = re.compile(r"\.saving-\d+-(?P<run>\w+)-(?P<group>\d+)-(?P<attempt>\d+)-\w+", re.ASCII)


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: all its files are there and as long as they were written."""

    step: int
    path: Path
    run: str = field(default="", compare=False)  # the id of the run that wrote it, "" if unknown


@dataclass(frozen=True)
class Ignored:
    """What looks like a checkpoint by its name and is none, for a person: why not."""

    path: Path
    reason: str
    foreign: bool  # nothing in it is ours
    doubtful: bool = False  # it may be ours, and may be somebody else's: neither to be passed over, nor to be deleted


@dataclass(frozen=True)
class Writer:
    """Who saves: one attempt of one group of one run."""

    run: str
    group: int
    attempt: int


def name_of(step: int) -> str:
    """The folder of a step: 100 -> step-00000100."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a folder's name, None for any name that `name_of` would not give."""
    digits = name.removeprefix("step-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        return None
    return int(digits) if name == name_of(int(digits)) else None


def survey(folder: Path, upto: int | None = None) -> Iterator[Saved | Ignored]:
    """Every folder named like a checkpoint, the highest step first, looked at only when it is its turn.

    Args:
        upto: leave out those of a higher step.

    Raises:
        OSError: the folder cannot be read. One that is not there holds nothing.
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
    """Whether this folder is a complete checkpoint of this step."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            why = "it is a symbolic link, through which nothing is read: put the folder itself in its place"
            return Ignored(path, why, foreign=False, doubtful=True)
        if not stat.S_ISDIR(mode):
            return Ignored(path, "it is no folder", foreign=True)
        read = _read_manifest(path)
    except FileNotFoundError:
        return _without_manifest(path, f"it has no {MANIFEST}")
    except OSError as error:
        return _without_manifest(path, f"it cannot be read: {error.strerror}")
    except (ValueError, RecursionError):
        return _without_manifest(path, f"{MANIFEST} holds no JSON")
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
    """The complete checkpoint of the highest step, None if there is none or the folder cannot be read."""
    with contextlib.suppress(OSError):
        for found in survey(folder, upto):
            if isinstance(found, Saved):
                return found
    return None


def damaged(folder: Path) -> Ignored | None:
    """The one of the highest step that is ours and no good, None if there is none or the folder cannot be read."""
    with contextlib.suppress(OSError):
        for found in survey(folder):
            if isinstance(found, Ignored) and not found.foreign:
                return found
    return None


def only_foreign(folder: Path) -> bool:
    """Whether there are files here, but none in our format: the script saves in a way of its own.

    Our half-written and damaged folders do not count, nor the positions in the data.
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


def manifest(
    step: int, writer: Writer, ranks: int, files: Mapping[str, int], crc32: Mapping[str, int] | None = None
) -> bytes:
    """The text of the file that makes a folder a checkpoint.

    Args:
        files: name and size in bytes of every other file.
        crc32: their checksums; versions before did not write any.
    """
    text = {"format": FORMAT, "step": step, "run": writer.run, "group": writer.group, "attempt": writer.attempt}
    sums = {} if crc32 is None else {"crc32": dict(crc32)}
    return json.dumps({**text, "ranks": ranks, "files": dict(files), **sums}, indent=1).encode()


def checksum(path: Path) -> int:
    """The CRC-32 of a file.

    Raises:
        OSError: it cannot be read.
    """
    value = 0
    with owned_files.open_file(path) as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def altered(path: Path, rank: int = 0, ranks: int = 1) -> str | None:
    """Which file of a complete checkpoint is not what was written, None if all are; without checksums nobody can tell.

    Args:
        rank, ranks: look only at every so many-th file, that so many can share the work.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    read = _read_manifest(path)
    if "crc32" not in read:
        return None
    sums = read["crc32"] if isinstance(read["crc32"], dict) else {}
    for name in sorted(read["files"])[rank::ranks]:
        if (found := checksum(path / name)) != (expected := sums.get(name)):
            return f"{name} is not what was written: its checksum is {found}, it was {expected!r:.40}"
    return None


def saving_name(step: int, writer: Writer, token: str) -> str:
    """Where a checkpoint is written until it is whole; the token makes it unique."""
    return f".saving-{step:08d}-{_word(writer.run)}-{writer.group}-{writer.attempt}-{token}"


def is_dead(name: str, me: Writer, idle_s: float, patience_s: float) -> bool:
    """Whether a dot folder is a leftover that nobody writes into any more.

    An earlier attempt of our own group of this run is over: two never live at a time. Of others, who may be alive, we
    know only for how long nothing was written.

    Args:
        idle_s: seconds since something in the folder was changed last.
        patience_s: a folder of others that is idle for so long is taken for dead.
    """
    if name.startswith(".removed-"):
        return True
    match = _SAVING.fullmatch(name)
    if match is None:
        return False
    if (match["run"], int(match["group"])) == (_word(me.run), me.group):
        return int(match["attempt"]) < me.attempt or idle_s > patience_s
    return idle_s > patience_s


def is_due(step: int, every: int, newest: int) -> bool:
    """Whether a committed step is to be saved.

    Every so many steps, and as soon as the newest checkpoint (or try) is so many steps old: whoever was to save then
    died over it.
    """
    return step % every == 0 or step - newest >= every


def to_prune(complete: Iterable[Saved], step: int, keep: int) -> list[Saved]:
    """Those to delete after `step` was saved, so that the last `keep` up to it stay; keep=0 keeps all.

    A checkpoint of a higher step is left alone: it is of a history that was undone because it could not be read,
    and will be overwritten when the training comes there again. It must not push out a good one.
    """
    if keep < 1:
        return []
    older = sorted((saved for saved in complete if saved.step <= step), key=lambda saved: saved.step, reverse=True)
    return older[keep:]


def sync(folder: Path) -> None:
    """Bring a folder's names to disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _read_manifest(path: Path) -> Any:
    with owned_files.open_file(path / MANIFEST) as file:
        return json.loads(file.read(MAX_MANIFEST))


def _without_manifest(path: Path, why: str) -> Ignored:
    """What a folder is whose manifest says nothing: by the names of the other files."""
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
    return Ignored(path, f"{why}: something else has written it", foreign=True)


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
        return f"{name} cannot be looked at: {error}"
    if not stat.S_ISREG(found.st_mode):
        return f"{name} is no file"
    if found.st_size != size:
        return f"{name} has {found.st_size} bytes, {size} were written"
    return None


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"


def steps(folder: Path) -> list[int]:
    """The steps of all folders named like a checkpoint, complete or not, without looking into them."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return [step for name in names if (step := step_of(name)) is not None]
