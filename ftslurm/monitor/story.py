"""What the journal of a run tells so far: how it stands, for people, and from where its next controller goes on."""

from __future__ import annotations

from ftslurm.monitor.status import RunStatus, harmless
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.protocol.records import Progress
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, number
from ftslurm.run.journal_lines import read
from ftslurm.run.replay import Reading
from ftslurm.run.run_reader import RunReader


class Story:
    """A run, as read once."""

    def __init__(self, run: RunDir, raw: bool = False) -> None:
        """Read the journal, and of its progress the end.

        Args:
            raw: leave control characters in the status, which could steer a terminal; JSON and repr escape them.

        Raises:
            EnvironmentProblem: the journal cannot be read.
        """
        self.reader, reading, folding = RunReader(run), Reading(), StatusFold()
        self.recent = list[Event]()  # the last progress of the groups that run
        for event in self.reader.up_to_now():
            record, time = read(event), number(event, "time")
            reading.take(record, time or 0.0)
            folding.take(record, time)
            if isinstance(record, Progress):
                self.recent.append(event)
        self.status: RunStatus = folding.status if raw else harmless(folding.status)
        self.past, self.outcome = reading.past, reading.outcome  # None: it has not begun; it is not over
