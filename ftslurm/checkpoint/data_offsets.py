"""Where one rank of one group is in its data, at every step it has committed: an append-only file of its own.

    DIR/positions/group-0003-rank-0

Each record says "after this step, here". It stands for the end of the history so far: a record takes back those of its
own step and of later ones, which a full restart has undone. A record that was half written is found by its checksum.
Data objects are pickled; a file is read only if nobody else can have written it.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftslurm.checkpoint import layout
from ftslurm.security import owned_files

HEAD = struct.Struct("<qII")  # step, length and checksum of what follows


class Positions:
    """The file of one rank, read once and then only written."""

    def __init__(self, folder: Path, group: int, rank: int, ranks: int, data: Any) -> None:
        self.path = folder / layout.POSITIONS / f"group-{group:04d}-rank-{rank}"
        self.who, self.ranks, self.data = f"group {group} rank {rank}", ranks, data
        self.records: dict[int, bytes] = {}  # by step, ascending
        self._file: int | None = None
        self._failing = False

    def restore(self, step: int | None) -> None:
        """Put the data where it was after this step; None: after the last step of the file, whichever that was.

        A group that was down at that step has trained nothing since its last one, so that is where it was.
        """
        try:
            why = self.read()
        except OSError as error:
            why = str(error)
        at, noted = self.upto(step) or (0, None)
        if noted is not None and noted[0] == self.ranks:
            self.data.load_state_dict(noted[1])
            if step is not None and at < step:
                say(f"{self.who}: its place in the data is that of step {at}, its last one up to step {step}")
        elif noted is not None or step != 0:
            why = why or (f"it was noted by groups of {noted[0]} ranks" if noted else "none was noted")
            say(f"{self.who}: STARTS AT THE BEGINNING OF ITS DATA, no place to go on from in {self.path}: {why}")
        if step is not None:
            self.note(step)  # takes back the later ones: their steps are undone

    def note(self, step: int, trim_to: Sequence[int] = ()) -> None:
        """After this step, here. An error is told, once, and stops nothing.

        Args:
            trim_to: the steps of checkpoints; positions that neither belong to one nor are newer are dropped.
        """
        state = (self.ranks, self.data.state_dict())
        try:
            self.append(step, state)
            if trim_to:
                self.trim(trim_to)
            self._failing = False
        except OSError as error:
            if not self._failing:
                say(f"{self.who}: its place in the data cannot be noted, training goes on: {self.path}: {error}")
            self._failing = True

    def read(self) -> str | None:
        """Read what there is; why it cannot be trusted, None if it can or there is nothing.

        Raises:
            OSError: it cannot be read.
        """
        self.records.clear()
        try:
            with owned_files.open_file(self.path) as file:
                if why := owned_files.distrust(os.fstat(file.fileno())):
                    return why
                text = file.read()
        except FileNotFoundError:
            return None
        at = 0
        while at + HEAD.size <= len(text):
            step, length, checksum = HEAD.unpack_from(text, at)
            content = text[at + HEAD.size : at + HEAD.size + length]
            if len(content) < length or zlib.crc32(content, step & 0xFFFFFFFF) != checksum:
                break  # the end was cut off
            self._remember(step, content)
            at += HEAD.size + length
        return None

    def upto(self, step: int | None = None) -> tuple[int, Any] | None:
        """The last position, of this step or before, and the step it is of."""
        steps = [known for known in self.records if step is None or known <= step]
        return (steps[-1], pickle.loads(self.records[steps[-1]])) if steps else None  # noqa: S301 read() has looked

    def append(self, step: int, state: object) -> None:
        """After this step, here. One write, without waiting for the disk: a killed process loses nothing.

        Raises:
            OSError: it could not be written; the record before is then still good.
        """
        content = pickle.dumps(state)
        self._remember(step, content)
        if self._file is None:
            self.trim([])  # also cuts off what was half written
        else:
            self._write(self._file, _record(step, content))

    def trim(self, checkpoints: Sequence[int]) -> None:
        """Keep the positions that belong to these steps, and those behind the last of them.

        Raises:
            OSError: the file could not be replaced.
        """
        if checkpoints:
            needed = {max((s for s in self.records if s <= wanted), default=0) for wanted in checkpoints}
            last = max(checkpoints)
            self.records = {s: content for s, content in self.records.items() if s > last or s in needed}
        self.path.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.part")
        part.unlink(missing_ok=True)
        try:
            owned_files.write_file(part, b"".join(_record(step, content) for step, content in self.records.items()))
            part.replace(self.path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self.close()
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, file: int, record: bytes) -> None:
        before = os.fstat(file).st_size
        if os.write(file, record) < len(record):  # the disk is full
            os.ftruncate(file, before)
            raise OSError("no room for the whole of it")

    def _remember(self, step: int, content: bytes) -> None:
        while self.records and next(reversed(self.records)) >= step:
            self.records.popitem()
        self.records[step] = content


def say(text: str) -> None:
    """One line to the log of this rank."""
    print(f"ftslurm: {text}", file=sys.stderr, flush=True)


def _record(step: int, content: bytes) -> bytes:
    return HEAD.pack(step, len(content), zlib.crc32(content, step & 0xFFFFFFFF)) + content
