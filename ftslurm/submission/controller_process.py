"""`python -m ftslurm.submission.controller_process JSON`: the controller as a child process.

Who runs this: a keeper, or a candidate for the lead (lead.py), which has taken the lead for the controller. The
controller of a local run has no parent: ftslurm.entry calls `control`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.config.schema import Config
from ftslurm.core.jobs import supply as jobs
from ftslurm.errors import EnvironmentProblem, FtslurmError, complain
from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.scheduler import Scheduler
from ftslurm.launchers.srun import Slurm
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.story import Story
from ftslurm.protocol.records import RunFinished
from ftslurm.run import configuration, full_disk, kept_state, leadership, liveness, log_cap
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event
from ftslurm.run.journal_writer import Journal
from ftslurm.run.kept_state import Kept
from ftslurm.security import process_title
from ftslurm.submission import observing
from ftslurm.submission.lead import BAD_INPUT, UNWRITTEN, patiently

if TYPE_CHECKING:
    from ftslurm.monitor.table import Lines


def main(root: str, number: int, pid: int, signals: int | None, after: str) -> int:
    """Run the controller to its end, or until another one takes over. Return the exit code of `control`.

    Args:
        root: the run directory.
        number, signals, after: as for `control`.
        pid: the parent.
    """
    if signals is None:  # the parent is a pilot, which gets the job's signals and asks for a hand-over with SIGUSR2
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(one, signal.SIG_IGN)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    full_disk.outlive()
    run = RunDir(Path(root))
    process_title.of_run("controller", run.root.name)

    if os.getppid() != pid:
        return 1  # the parent died before prctl took effect
    try:
        output, config = _Output(), configuration.of_run(run)
        if config.job_per_group:
            process_title.leave_process_tree()
        code = control(config, run, output, number, signals, after)
    except kept_state.Damaged as error:  # all later controllers would fail too
        from ftslurm.submission import requeue

        complain(error)
        requeue.end_journal(run, str(error), "failed")
        return 1
    except FtslurmError as error:
        complain(error)
        return BAD_INPUT
    if leadership.is_over(run):
        output.show_end(run)
    return code


class _Output:
    """Prints the events of a run into the output file of its job.

    What formats them is imported with the first event: the first steps have been started then.
    """

    known: RunStatus | None = None  # that of the run as earlier controllers have left it, from which it continues

    @cached_property
    def _lines(self) -> Lines:
        from ftslurm.monitor import table

        return table.Lines(table.console(), known=self.known)

    def tell(self, event: Event) -> None:
        """Show one event; the end of the run is in the summary."""
        self._lines.tell(event, shown=event.get("event") != RunFinished.event)

    def show_end(self, run: RunDir) -> None:
        """Show the summary of a run that is over."""
        from ftslurm.monitor import summary, table

        table.console().print(summary.summary(self._lines.folding.status, run, followed=True))


def control(
    config: Config,
    run: RunDir,
    output: _Output | None = None,
    number: int | None = None,
    signals: int | None = None,
    after: str = "",
) -> int:
    """Run the controller in this process. If the run is to go on in another job, submit or requeue that job.

    Args:
        output: where every event is told once it is in the journal.
        number: this controller's leader number; None: a local run, which has one controller only.
        signals: the pipe through which the keeper passes on its signals, a byte each.
        after: how the previous controller crashed.

    Returns:
        The exit code of the run; 0 if it goes on with another controller.
    """
    logger, tell = logging.getLogger("ftslurm"), output.tell if output is not None else lambda _: None
    log_cap.log_to(logger, run.controller_log, config.logs.max_mb)
    try:
        scheduler: Scheduler = ThisMachine(config, run) if config.local else Slurm(config, run)
        with liveness.kept(run.alive, config.heartbeat_s, lambda: number is None or leadership.held(run, number)):
            kept = _taken_over(run, number)
            if (over := leadership.final(run)) is not None:
                _tidy_up(run, scheduler, number)
                if after:
                    _write_report(run, logger)
                else:
                    print(f"ftslurm: the run is over ({over}): this job, which was started again, ends", flush=True)
                return leadership.code(run)
            if output is not None:
                output.known = Story(run).status
            from ftslurm.controller.loop import Controller

            controller = Controller(config, run, scheduler, tell, kept, number, signals, after)
        with observing.observed(config, run, number) as tell_at_once:
            outcome = controller.run(tell_at_once)
        if outcome == "left":
            controller.linger()
    except EnvironmentProblem:
        raise
    except Exception:
        logger.exception("the controller failed; this is a bug in ftslurm")
        raise
    if outcome == "requeued":
        from ftslurm.submission import requeue

        why_not = requeue.go_on(config, run)
        if why_not is None:
            return 0
        logger.error("%s", why_not)
        tell(requeue.end_journal(run, why_not))
    if leadership.is_over(run):
        _write_report(run, logger)
        return leadership.code(run)
    if outcome in ("failed", "stopped"):
        return UNWRITTEN
    return 0 if outcome in ("succeeded", "left", leadership.SUPERSEDED) else 1


def _taken_over(run: RunDir, number: int | None) -> Kept | None:
    """Return what the controller before has left, and write the lines of the journal that it had promised.

    None: there was no controller, or the run is over.
    """
    if leadership.final(run) is not None:
        return None
    kept = patiently(lambda: kept_state.read(run, number))
    if kept is not None and kept.lines:
        with suppress(OSError):  # a full disk: the journal of this controller writes them
            Journal(run, kept=kept).close()
    return kept


def _tidy_up(run: RunDir, scheduler: Scheduler, number: int | None) -> None:
    """Cancel the jobs that are left of a run that is over: the controller before may have died before it did."""
    with suppress(EnvironmentProblem, OSError):
        kept = kept_state.read(run, number)
        if kept is not None:
            scheduler.state = kept.state
            scheduler.end(jobs.over(kept.state))


def _write_report(run: RunDir, logger: logging.Logger) -> None:
    """Write report.html. The run is over: nothing that is wrong with its report changes its outcome."""
    try:
        from ftslurm.report.run_report import read_report

        read_report(run, Story(run).status).write_page(run.report)
    except Exception:
        logger.exception("report.html could not be written; `ftslurm report %s` tries it again", run.root)


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
