"""The readers of a journal that keep something of each record: how a run stands, and where its time went."""

from __future__ import annotations

from ftslurm.protocol.records import JournalRecord
from ftslurm.run.journal import Event, number
from ftslurm.run.journal_lines import read


class Fold:
    """Takes in the records of a journal one by one: each by the method that has the name of its event.

    Unknown events and fields are ignored, so that a journal of another version can be read.
    """

    time: float | None = None  # of the record that is taken in

    @property
    def now(self) -> float:
        """Return that time, or 0 if the record has none."""
        return self.time or 0.0

    def apply(self, event: Event) -> None:
        """Take in the next line."""
        self.take(read(event), number(event, "time"))

    def take(self, record: JournalRecord, time: float | None) -> None:
        """Take in the record of the next line."""
        self.time = time
        handle = getattr(self, record.event, None)
        if handle is not None:
            handle(record)
