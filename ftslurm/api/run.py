"""A run as a Python object: what the command line does with a run are methods here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from ftslurm.api import resuming, state, submitting
from ftslurm.api.state import look, report, show_logs
from ftslurm.api.steered import Steered
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import RunNotFound
from ftslurm.monitor.log_files import Wanted
from ftslurm.monitor.log_page import View
from ftslurm.monitor.status_json import StatusJson, to_json
from ftslurm.protocol.records import JournalRecord
from ftslurm.report.report_json import ReportJson
from ftslurm.run import results
from ftslurm.run.directory import RunDir
from ftslurm.run.facts import Watcher
from ftslurm.run.journal_lines import read
from ftslurm.run.run_reader import RunReader

FOLLOW_S = 0.2  # how often the journal is read by who follows it


class Run(Steered):
    """A run, going on or over. It holds nothing but the path: each call reads what is true at that moment."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a run directory.

        Raises:
            RunNotFound: it is none.
        """
        self.files = RunDir(Path(path).absolute())
        if not os.path.exists(self.files.config):
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
        return to_json(seen.status, seen.moment, seen.note, seen.state)

    def wait(self, timeout: float | None = None) -> StatusJson:
        """Wait until the run is over, and return its status; `status["outcome"]` says how it ended.

        Raises:
            TimeoutError: it is not over after `timeout` seconds.
            EnvironmentProblem: its controller is gone and has written no outcome.
        """
        state.wait(self.config, self.files, timeout)
        return self.status()

    def events(self, follow: bool = False) -> Iterator[JournalRecord]:
        """Yield the journal's records, from the first.

        Args:
            follow: go on until the run is over, has lost its controller or is deleted.
        """
        yield from map(read, self.lines(follow))

    def lines(self, follow: bool = False, progress: bool = True) -> Iterator[Mapping[str, Any]]:
        """Yield the journal's lines as they are, with `seq`, `time` and `event`. Else as `events`.

        Args:
            progress: also all progress so far, which a long run has much of; else only the last of each group.
        """
        reader = RunReader(self.files)
        watcher = Watcher(self.config, self.files)
        read_lines = reader.iter_new if progress else reader.up_to_now
        while True:
            # Asked before the journal is read: its last line is not missed.
            last = not follow or not watcher.there()
            yield from read_lines()
            if last:
                return
            read_lines = reader.iter_new
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
        submitting.settle(resumption.config, judge=resumption.code is None)
        return Run(submitting.launch(resumption.config, resumption.create).root)
