"""A run as a Python object: what the command line does with a run are methods here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from ftslurm.api import attaching, drills, resuming, scaling, steering, stopping, submitting, waiting
from ftslurm.api.answers import Answer
from ftslurm.api.state import look, report, show_logs
from ftslurm.api.steering import Stacks
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import RunNotFound
from ftslurm.monitor.log_files import Wanted
from ftslurm.monitor.log_page import View
from ftslurm.monitor.status_json import StatusJson, to_json
from ftslurm.protocol.records import CommandDone, FaultInjected, JournalEvent, Scaled
from ftslurm.report.report_json import ReportJson
from ftslurm.run import results
from ftslurm.run.directory import RunDir
from ftslurm.run.journal_lines import read
from ftslurm.run.run_reader import RunReader
from ftslurm.submission import jobs_of_run

FOLLOW_S = 0.2  # how often the journal is read by who follows it


class Run:
    """A run, going on or over. It holds nothing but the path: each call reads what is true at that moment."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a run directory.

        Raises:
            RunNotFound: it is none.
        """
        self.files = RunDir(Path(path).absolute())
        if not self.files.config.exists():
            raise RunNotFound(f"{self.files.root} is no run directory, it holds no {self.files.config.name}")

    def __repr__(self) -> str:
        return f"Run({str(self.dir)!r})"

    @property
    def id(self) -> str:
        """The run's id: the name of its directory."""
        return self.dir.name

    @property
    def dir(self) -> Path:
        """The run directory."""
        return self.files.root

    @cached_property
    def config(self) -> Config:
        """The run's settings; to change them changes nothing in the run."""
        return compose.load(self.files.config, own=False)

    def status(self) -> StatusJson:
        """Return how the run stands, as `ftslurm status --json` prints it."""
        seen = look(self.config, self.files, raw=True)
        return to_json(seen.status, seen.moment, seen.note)

    def wait(self, timeout: float | None = None) -> StatusJson:
        """Wait until the run is over, and return its status; `status["outcome"]` says how it ended.

        Raises:
            TimeoutError: it is not over after `timeout` seconds.
            EnvironmentProblem: its controller is gone and has written no outcome.
        """
        waiting.wait(self.config, self.files, timeout)
        return self.status()

    def events(self, follow: bool = False) -> Iterator[JournalEvent]:
        """Yield the journal's records, from the first.

        Args:
            follow: go on until the run is over, has lost its controller or is deleted.
        """
        yield from map(read, self.lines(follow))

    def lines(self, follow: bool = False) -> Iterator[Mapping[str, Any]]:
        """Yield the journal's lines as they are, with `seq`, `time` and `event`. Else as `events`."""
        reader = RunReader(self.files)
        there = jobs_of_run.still_there(self.config, self.files)
        while True:
            # Asked before the journal is read: its last line is not missed.
            last = not follow or not there() or not self.dir.exists()
            yield from reader.iter_new()
            if last:
                return
            time.sleep(FOLLOW_S)

    def value(self) -> list[float] | None:
        """Return the numbers that the script has written to the file named by FTSLURM_RESULT; None: none yet.

        Raises:
            ValueError: what it has written are no numbers.
        """
        return results.read(self.files)

    def report(self) -> ReportJson:
        """Return where the time of the run went, as `ftslurm report --json` prints it."""
        return report(self.config, self.files).json

    def logs(self, group: int | None = None, rank: int | None = None, attempt: int | None = None) -> str:
        """Return what the scripts have printed, in time order. Without a group: rank 0 of every group.

        Raises:
            RunNotFound: there is no such group, rank or attempt.
        """
        out = BytesIO()
        show_logs(self.config, self.files, Wanted(group, rank, attempt), out, View(raw=True))
        return out.getvalue().decode(errors="replace")

    def resume(self, overrides: Sequence[str] = (), *, from_scratch: bool = False, new_code: bool = False) -> Run:
        """Start a new run with the same configuration from this one's newest checkpoint, and return it.

        Args:
            overrides: changes, as on the command line.
            from_scratch: begin at step 0 instead.

        Raises:
            FtslurmError: this run is not over, has nothing to resume from, or the new one cannot be started.
        """
        resumption = resuming.resume(self.files, overrides, from_scratch, new_code)
        submitting.settle(resumption.config, judge=not resumption.code.kept)
        return Run(submitting.launch(resumption.config, resumption.create).root)

    def stop(self, save: bool = False) -> str:
        """End the run: SIGTERM to the scripts, SIGKILL after stop.grace_s. Return what has happened, for a person.

        Args:
            save: save a checkpoint before, as `save` does; if that fails, the run goes on.

        Raises:
            NotDone: no checkpoint could be saved, or the controller does not answer.
        """
        return stopping.stop(self.files, save)

    def scale(self, groups: int) -> Answer[Scaled]:
        """Give the run more groups, or fewer; the others train on meanwhile.

        Raises:
            EnvironmentProblem: the run can never have so many groups, or has no controller.
            NotDone: the controller refuses, or does not answer.
        """
        return scaling.scale(self.files, groups)

    def restart(self, group: int, rank: int | None = None) -> Answer[CommandDone]:
        """Have a group leave politely and start again as its next attempt, which counts against no budget.

        Args:
            rank: the rank that it is for, named in the journal with its node; the whole group starts again.

        Raises:
            EnvironmentProblem: the run has no controller.
            NotDone: the controller refuses, or does not answer.
        """
        return steering.restart(self.files, group, rank)

    def save(self) -> Answer[CommandDone]:
        """Save a checkpoint now; return when it is complete, with its `step` and `path` in the answer's record.

        Raises:
            EnvironmentProblem: the run has no controller.
            NotDone: no script of the run can save, it could not be saved, or the controller does not answer.
        """
        return steering.save(self.files)

    def stacks(self, group: int, rank: int | None = None) -> list[Stacks]:
        """Take the stacks of a rank of a group now; with None, of all its ranks.

        Raises:
            EnvironmentProblem: the run has no controller.
            NotDone: the controller refuses, or does not answer, or a rank does not.
        """
        return steering.stacks(self.files, group, rank)

    def attach(self, group: int, rank: int = 0) -> list[str]:
        """Return the command that starts a shell beside a rank, with the rank's environment; run it in a terminal.

        Raises:
            EnvironmentProblem: there is no such group or rank, or the run has no controller.
            NotDone: the group does not run now.
        """
        return attaching.attach_command(self.files, group, rank)

    def drain(self, node: str) -> Answer[CommandDone]:
        """Leave a node out: nothing is placed there, and what runs there moves away politely while there is room.

        Raises:
            EnvironmentProblem: the run has no controller.
            NotDone: the controller refuses, or does not answer.
        """
        return steering.drain(self.files, node)

    def undrain(self, node: str) -> Answer[CommandDone]:
        """Use a drained node again.

        Raises:
            EnvironmentProblem: the run has no controller.
            NotDone: the controller refuses, or does not answer.
        """
        return steering.undrain(self.files, node)

    def inject(self, fault: str, group: int | None = None, rank: int | None = None) -> Answer[FaultInjected]:
        """Do one real fault to the run, to see it recover; `ftslurm inject --help` names them.

        Raises:
            EnvironmentProblem: there is no such fault, group or rank, or the run has no controller.
            NotDone: the controller refuses, or does not answer.
        """
        return drills.inject(self.files, fault, group, rank)
