"""Keeps the position of one rank in its data after every committed step, in an append-only file of its own.

    DIR/positions/group-0003-rank-0        the positions of one rank
    DIR/positions/history-0002-RUN-1       the step at which a history began: the third one, RUN's second

A record is a pickle behind its size and checksum: a step, the shares, the history, and the state of the data object
after the step. The shares are the number of groups and ranks and the batch size: in other shares the same state is
another place. A record of a step replaces those of the same and of later steps. A damaged record is ignored. A file is
read only if no other user can have written it.

A history begins with each run and with each full restart, at the step of the checkpoint that was loaded. It undoes all
later steps of the histories before it. Every group that loads the checkpoint writes the same file, so that a group
which was away meanwhile can tell which of its records are undone.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.places import Folders
from ftslurm.errors import complain
from ftslurm.security import owned_files

HEAD = 8  # bytes before a record: its size and its checksum


class DataPositions:
    """The file of one rank, read once and then only written."""

    def __init__(self, folder: Path, group: int, rank: int, ranks: int, data: Any, history: str = "_-0") -> None:
        """Prepare to read and write; nothing is read yet.

        Args:
            folder: that of the checkpoints.
            group: the number of this rank's group.
            rank: this rank's number in its group.
            ranks: how many ranks the group has.
            data: an object with state_dict() and load_state_dict(), and maybe batch_size.
            history: the name of the history that is being written (layout.history_of).
        """
        self.folder = folder / layout.POSITIONS
        self.path = self.folder / f"group-{group:04d}-rank-{rank}"
        self.name = f"group {group} rank {rank}"
        self.history = history
        self.rank = rank
        groups = os.environ.get("NUM_REPLICA_GROUPS", "1")
        # How the data are divided: the ranks of a group, and all in words.
        self.shares = ranks, f"{groups} groups of {ranks} ranks, batch size {getattr(data, 'batch_size', 'unknown')}"
        self.data = data
        self.records: dict[int, bytes] = {}  # by step, ascending
        self._file: int | None = None
        self._failing = False

    def restore(self, step: int | None) -> None:
        """Set the data to its position after a step. The data is not asked for its state: it may not have one yet.

        Args:
            step: the step of the loaded checkpoint, at which this history begins. If the file has no record of it, the
                last one before is used: the group was down at that step, and has trained nothing since. None: other
                groups hold the state; the last record that no history has undone is used.
        """
        why = ""
        try:
            self.read()
            began = self.histories()
            if step is not None:
                began[self.history] = max(step, began.get(self.history, 0))
                self._write_history(began)
            self._drop_undone(began, step)
        except OSError as error:
            why = str(error)
            self.records.clear()  # which of them are undone is not known
        if (found := self.upto(step)) is not None:
            why = self._load(found, step)
        elif step != 0:
            why = why or "none was recorded"
        if why:
            complain(f"{self.name}: STARTS AT THE BEGINNING OF ITS DATA, no usable position in {self.path}: {why}")

    def _load(self, record: Any, step: int | None) -> str:
        """Set the data to a recorded position. Return why it cannot be used, or "" if it is used."""
        at, (ranks, shares), _, state = record
        if ranks != self.shares[0]:
            return f"it was recorded by groups of {ranks} ranks"
        differs = f"recorded by {shares}, now {self.shares[1]}" if shares != self.shares[1] else ""
        try:
            self.data.load_state_dict(state)
        except Exception as error:
            if not differs:
                raise
            return f"it was {differs}: {error}"  # a part of a stream, say, that is gone
        if differs:
            complain(
                f"{self.name}: its position in the data was {differs}. Unless the loader counts the samples of all "
                "shares, some samples are trained twice and others not: ftslurm help data"
            )
        if step is not None and at < step:
            complain(f"{self.name}: its position in the data is of step {at}, the last one recorded up to step {step}")
        return ""

    def histories(self) -> dict[str, int]:
        """Return the step at which each history began, oldest first.

        Raises:
            OSError: a file cannot be read, or another user can have written it.
        """
        names = sorted(path.name for path in self.folder.glob("history-*"))
        contents = {name: Folders().cat_file(str(self.folder / name)) for name in names}
        return {
            found[1]: int(content)
            for name, content in contents.items()
            if (found := layout.HISTORY.fullmatch(name)) and content.isdigit()
        }

    def _write_history(self, began: dict[str, int]) -> None:
        """Write the step at which this history begins; all groups write the same name."""
        if self.rank == 0:
            name = layout.history_file(list(began).index(self.history), self.history)
            Folders().pipe_file(str(self.folder / name), str(began[self.history]).encode())

    def _drop_undone(self, began: dict[str, int], step: int | None) -> None:
        """Drop the records of steps that a later history, or the step to go back to, has undone."""
        order = list(began)
        for known, record in list(self.records.items()):
            history = unframed(record)[2]
            later = order[order.index(history) + 1 :] if history in order else order
            if known > min([began[name] for name in later], default=known) or (step is not None and known > step):
                del self.records[known]

    def note(self, step: int, trim_to: Sequence[int] = ()) -> None:
        """Record the position after a step. An error is reported once and does not stop the training.

        Args:
            trim_to: the steps of the checkpoints; if given, positions that neither belong to one nor are newer are
                dropped.
        """
        record = framed(pickle.dumps((step, self.shares, self.history, self.data.state_dict())))
        try:
            self.append(step, record)
            if trim_to:
                self.trim(trim_to)
            self._failing = False
        except OSError as error:
            if not self._failing:
                complain(
                    f"{self.name}: its position in the data cannot be recorded, training goes on: {self.path}: {error}"
                )
            self._failing = True

    def read(self) -> None:
        """Read the file, if there is one.

        Raises:
            OSError: it cannot be read, or another user can have written it.
        """
        self.records.clear()
        try:
            with owned_files.open_own(self.path) as file:
                content = file.read()
        except FileNotFoundError:
            return
        at = 0
        while record := content[at + HEAD : at + HEAD + int.from_bytes(content[at : at + 4], "big")]:
            if content.startswith(whole := framed(record), at):
                self._remember(pickle.loads(record)[0], whole)  # noqa: S301 open_own has checked the owner
            at += HEAD + len(record)

    def upto(self, step: int | None = None) -> Any:
        """Return the last record of this step or before."""
        steps = [known for known in self.records if step is None or known <= step]
        return unframed(self.records[steps[-1]]) if steps else None

    def append(self, step: int, record: bytes) -> None:
        """Append a record with one write, without a sync: it outlives a killed process, not a crash of the machine.

        Raises:
            OSError: it could not be written; the records before are still good.
        """
        self._remember(step, record)
        if self._file is None:
            self.trim([])  # also drops an incomplete record at the end
            return
        before = os.fstat(self._file).st_size
        if os.write(self._file, record) < len(record):  # the disk is full
            os.ftruncate(self._file, before)
            raise OSError("no space left for the whole record")

    def trim(self, checkpoints: Sequence[int]) -> None:
        """Rewrite the file with the positions that belong to these steps, and those after the last of them.

        Raises:
            OSError: the file could not be replaced.
        """
        if checkpoints:
            needed = {max((s for s in self.records if s <= wanted), default=0) for wanted in checkpoints}
            last = max(checkpoints)
            self.records = {s: record for s, record in self.records.items() if s > last or s in needed}
        Folders().pipe_file(str(self.path), b"".join(self.records.values()))
        self.close()
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _remember(self, step: int, record: bytes) -> None:
        while self.records and next(reversed(self.records)) >= step:
            self.records.popitem()
        self.records[step] = record


def framed(record: bytes) -> bytes:
    """Return a record behind its size and checksum."""
    return len(record).to_bytes(4, "big") + zlib.crc32(record).to_bytes(4, "big") + record


def unframed(record: bytes) -> Any:
    """Return what is in a record that `framed` has made."""
    return pickle.loads(record[HEAD:])  # noqa: S301 DataPositions.read has checked the owner of the file
