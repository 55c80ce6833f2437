"""The state of a run as its last controller has kept it: RUN/state/NNNN.jsonl, a file for each controller.

A write-ahead log: one line for each decision that writes to the journal, on disk before the decision is carried out. It
has the journal's lines too, because the next controller writes those that have not reached events.jsonl. A line begins
with the checksum of its text.

    1c291ca3 {"state": all of it, "seq": of the last line of the journal, "time": 1790000000.1, "lines": [...]}
    5d00f2d8 {"changes": since the line before, "seq": 9, "time": 1790000001.2, "lines": [those since the line before]}

A new controller reads the file of the highest number below its own, and writes its own file. A controller that has lost
the lead can only write where nobody reads. A half last line was not acted upon, so it is ignored. Whole lines that are
missing were acted upon, and the journal tells of them: it never has a line that is not here, except that a script has
begun, and the end of a run whose controller was lost.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ftslurm.core.state import kept
from ftslurm.core.state.model import LIVE, Phase, StepId, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.value_class import Value
from ftslurm.run import journal, leadership
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files

STATE, CHANGES = "state", "changes"


class Damaged(EnvironmentProblem):
    """What earlier controllers have left cannot be read: no controller can lead the run any more."""


class Kept(Value):
    """What an earlier controller has left."""

    state: RunState
    seq: int  # of the last line of the journal that it has written or promised
    time: float  # its clock at its last line
    lines: tuple[Mapping[str, Any], ...] = ()  # those that the journal may lack

    @property
    def live(self) -> tuple[Unit, ...]:
        """The units whose steps may run."""
        return tuple(unit for unit in self.state.units if unit.phase in LIVE)


def read(run: RunDir, below: int | None = None) -> Kept | None:
    """Return what the last controller of a run has kept, or None if no controller has written anything yet.

    Args:
        below: only controllers with a lower leader number count; None: all.

    Raises:
        Damaged: no later controller can read it, or it lacks what the journal has.
        OSError: it cannot be read now.
    """
    try:
        there = _seq(run)
        # Not listed: a network file system may answer a listing from its cache.
        for number in range((below or leadership.newest(run) + 1) - 1, -1, -1):
            with suppress(FileNotFoundError):
                if (found := _read(run, number, there)) is not None:
                    return found
        if not there:
            return None
        problem = "is missing"
    except (PermissionError, ValueError, LookupError, TypeError, RecursionError) as error:  # not ours alone, or damaged
        problem = f"cannot be read ({type(error).__name__}: {error})"
    raise Damaged(
        f"the state of the run in {run.state} {problem}, so no controller can go on with the run. "
        f"Start a new run from its newest checkpoint: ftslurm resume {run.root}"
    )


def checked(text: bytes) -> bytes:
    """Return a line with its checksum."""
    return b"%08x %s" % (zlib.crc32(text), text)


def remove(run: RunDir, below: int) -> None:
    """Remove the files of earlier controllers, as far as possible."""
    with suppress(OSError):
        for path in run.state.iterdir():
            if path.stem.isdecimal() and int(path.stem) < below:
                path.unlink()


def unmade(run: RunDir, state: RunState) -> frozenset[StepId]:
    """Return the steps that were never started: the folder of an attempt is made first. The Lighthouse has none."""
    starting = (unit.id for unit in state.units if unit.phase is Phase.STARTING and not unit.is_lighthouse)
    return frozenset(step for step in starting if _is_missing(run, step))


def _is_missing(run: RunDir, step: StepId) -> bool:
    try:
        run.attempt(step.unit, step.attempt).stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _seq(run: RunDir) -> int:
    """Return the seq of the last complete line of the journal that is always here as well, or 0 if there is none."""
    try:
        with owned_files.open_own(run.events) as file:
            return journal.end(file.fileno(), b'"event":"script_begun"')[0]
    except FileNotFoundError:
        return 0


def _read(run: RunDir, number: int, there: int) -> Kept | None:
    """Read a file from its end back to the last whole state; return None if it has none.

    Args:
        there: the seq of the last line of the journal; older lines of the file are read as long as it lacks some.
    """
    with owned_files.open_own(run.kept(number)) as file:
        *lines, _ = file.read().split(b"\n")
    records = list[Any]()
    for line in reversed(lines):
        if line != checked(text := line[9:]):
            raise ValueError(f"{run.kept(number).name} is damaged")
        records.insert(0, json.loads(text))
        if STATE in records[0] and records[0]["seq"] <= there:
            break
    if not records:
        return None
    if there > records[-1]["seq"] and not leadership.is_over(run):
        raise ValueError(f"{run.kept(number).name} has lost its end")
    whole = max(index for index, record in enumerate(records) if STATE in record)
    state = kept.decode(records[whole][STATE])
    for record in records[whole + 1 :]:
        state = kept.merge(state, record[CHANGES])
    last, progress = records[-1], journal.last_line(run.progress) or {}
    time = max(last["time"], journal.number(progress, "time") or 0.0)
    missing = tuple(line for record in records for line in record["lines"] if line["seq"] > there)
    return Kept(state, last["seq"], time, missing)
