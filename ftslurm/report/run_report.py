"""The report of a run directory: made from its journal and configuration, and written to report.html."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor.status import RunStatus
from ftslurm.report.accounting import Accounts, account
from ftslurm.report.history import History
from ftslurm.report.history_fold import fold_history
from ftslurm.report.report_json import ReportJson, to_json
from ftslurm.report.tables import render
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.run_reader import RunReader
from ftslurm.security import owned_files


@dataclass(frozen=True)
class Report:
    """Where the time of a run went."""

    status: RunStatus
    history: History
    accounts: Accounts

    @property
    def json(self) -> ReportJson:
        """The report as `ftslurm report --json` prints it."""
        return to_json(self.status, self.history, self.accounts)

    def text(self) -> RenderableType:
        """Return the report for a terminal."""
        return render(self.status, self.history, self.accounts)

    def write_page(self, path: Path) -> None:
        """Write report.html: only this user may read it, and a reader sees the old page or the new one.

        Raises:
            EnvironmentProblem: it cannot be written, or the run belongs to another user, who could not read it then.
        """
        if not owned_files.is_own(path.parent.resolve()):
            raise EnvironmentProblem(f"{path} is not written: the run belongs to another user")
        from ftslurm.report.report_page import page  # every verb imports this, and jinja2 takes 0.1 s

        try:
            replace_text(path, page(self.status, self.history, self.accounts))
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}") from error


def read_report(run: RunDir, status: RunStatus, now: float = 0.0) -> Report:
    """Return the report of a run.

    Args:
        status: how it stands.
        now: until when the report of a run that goes on is.

    Raises:
        EnvironmentProblem: the journal cannot be read.
    """
    submitted: float | None = None
    with suppress(OSError):
        submitted = run.id.stat().st_mtime  # written once, when the run directory is made
    history = fold_history(RunReader(run).iter_new(), submitted, now)
    return Report(status, history, account(history))
