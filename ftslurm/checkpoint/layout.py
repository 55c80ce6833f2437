"""The names of checkpoints and what their manifests say, in a folder and in an object store alike. Pure.

    DIR/step-00000100.json                        the manifest: written last, at once; it makes the checkpoint
    DIR/data-00000100-RUN-GROUP-ATTEMPT-TIME/     a part: files of a checkpoint, whose manifest names this folder, or of
                                                  one that is being written, or was when its group died
    DIR/positions/                                the position of each rank of each group in its data (data_offsets.py)
    DIR/.owner                                    the run directory of the run that saves here

A manifest of another program, or another version of ftslurm, is not used, and never deleted or replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

FORMAT = "ftslurm-checkpoint-2"
POSITIONS = "positions"
OWNER = ".owner"
DISTRUSTED = "diverged"  # a file in a part: the group that has saved it had other weights than the rest
BLOCK = 1 << 20  # bytes that a checksum is for
ABANDONED_S = 24 * 3600.0  # no save takes as long; and no two clocks of a cluster are so far apart
HISTORY = re.compile(r"history-\d{4,}-(\w+-\d+)", re.ASCII)
PART = re.compile(r"data-(?P<step>\d{8,18})-(?P<run>\w+)-(?P<group>\d+)-(?P<attempt>\d+)-(?P<ns>\d+)", re.ASCII)

Files = Mapping[str, tuple[int, list[int]]]  # by name: the size, and the checksum of each block


@dataclass(frozen=True)
class Writer:
    """The attempt of a group that saves."""

    run: str
    group: int
    attempt: int


@dataclass(frozen=True)
class Manifest:
    """What is in a checkpoint."""

    run: str  # the id of the run that wrote it
    part: str
    files: Files


def name_of(step: int) -> str:
    """Return the name of a step's manifest: 100 -> step-00000100.json."""
    return f"step-{step:08d}.json"


def step_of(name: str) -> int | None:
    """Return the step of a manifest's name, None for a name that `name_of` does not give."""
    found = re.fullmatch(r"step-(\d{8,18})\.json", name, re.ASCII)
    return int(found[1]) if found and name == name_of(int(found[1])) else None


def part_name(step: int, writer: Writer, begun_ns: int) -> str:
    """Return the name of the folder in which a checkpoint is written; the time makes it unique."""
    return f"data-{step:08d}-{_word(writer.run)}-{writer.group}-{writer.attempt}-{begun_ns}"


def history_of(run: str, number: int) -> str:
    """Return the name of a run's history; a full restart begins the next one."""
    return f"{_word(run)}-{number}"


def history_file(place: int, history: str) -> str:
    """Return the name of the file that has the step at which a history began."""
    return f"history-{place:04d}-{history}"


def manifest(step: int, writer: Writer, part: str, files: Files) -> bytes:
    """Return the content of a manifest."""
    return json.dumps({"format": FORMAT, "step": step, **vars(writer), "folder": part, "files": files}).encode()


def parse(content: bytes, step: int) -> Manifest:
    """Return what the manifest of a step says.

    Raises:
        ValueError: it is none.
    """
    try:
        read = json.loads(content)
        files = {name: (int(size), list(crc32)) for name, (size, crc32) in read["files"].items()}
        if read["format"] == FORMAT and read["step"] == step and files and PART.fullmatch(read["folder"]):
            return Manifest(str(read["run"]), read["folder"], files)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        pass
    raise ValueError("it is no manifest of this step and this version of ftslurm")


def damage(files: Files, there: Mapping[str, int]) -> str | None:
    """Return what is wrong with the files of a checkpoint; None: nothing.

    Args:
        there: the files that there are, with their sizes.
    """
    if DISTRUSTED in there:
        return f"{DISTRUSTED} says that the group which saved it had other weights than the others"
    for name, (size, _) in files.items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]} bytes, {size} were written"
    return None


def is_of(part: re.Match[str], writer: Writer) -> bool:
    """Return whether a group has saved a part, in this attempt or one before."""
    ours = (part["run"], int(part["group"])) == (_word(writer.run), writer.group)
    return ours and int(part["attempt"]) <= writer.attempt


def is_dead(part: re.Match[str], me: Writer, now_ns: int) -> bool:
    """Return whether a part that no manifest names is abandoned.

    Earlier attempts of our own group of this run are over: a group has one live attempt at a time. Another group may be
    alive, so its part is abandoned only when it was begun long ago.
    """
    earlier = replace(me, attempt=me.attempt - 1)
    return is_of(part, earlier) or now_ns - int(part["ns"]) > ABANDONED_S * 1e9


def is_due(step: int, every: int, newest: int) -> bool:
    """Return whether to save after a committed step: at every multiple of `every`, or when the newest is that old.

    The second rule catches up on a save that its group did not survive. `newest` may also be a failed attempt.
    """
    return step % every == 0 or step - newest >= every


def _word(text: str) -> str:
    """Return a run's id as it stands in names."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
