"""What the journal of a run tells so far."""

from __future__ import annotations

from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.run.directory import RunDir
from ftslurm.run.run_reader import RunReader
from ftslurm.security.terminal import readable


class Story:
    """A run, as read once."""

    def __init__(self, run: RunDir, raw: bool = False) -> None:
        """Read the journal, and of its progress the end.

        Args:
            raw: leave control characters in the status, which could steer a terminal; JSON and repr escape them.

        Raises:
            EnvironmentProblem: the journal cannot be read.
        """
        self.reader, folding = RunReader(run), StatusFold()
        for event in self.reader.up_to_now():
            folding.apply(event if raw else readable(event))
        self.status: RunStatus = folding.status
