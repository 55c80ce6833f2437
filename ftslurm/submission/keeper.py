"""Keeps a controller running: a small parent process starts it again if it is killed, runs out of memory or raises.

Run by the controller's job (ftslurm.entry), or by `ftslurm run` with cluster.controller=here, in the allocation. Only
the end of the keeper, which on Slurm is the batch process, ends the run.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from ftslurm.config.schema import Config
from ftslurm.controller.signals import SIGNALS, Wakeup
from ftslurm.errors import EnvironmentProblem, complain
from ftslurm.protocol.readiness import readable
from ftslurm.run import leadership
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.journal import last_event
from ftslurm.security import process_title
from ftslurm.submission.lead import BAD_INPUT, LAST, MOST, WITHIN_S, Lead, patiently

INTERRUPTED = 130  # exit code of the keeper after Ctrl-C


def keep(run: RunDir, array: Config | None = None) -> int:
    """Keep a controller of this run running until the run is over or goes on elsewhere.

    Signals to this process reach the controller through a pipe; they wait in it while there is no controller.

    Args:
        array: the configuration of a run in array mode, where others may lead; None: another mode.

    Returns:
        The exit code of the run.
    """
    process_title.of_run("keeper", run.root.name)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    lead = Lead(run, read_end)
    if not (patiently(lambda: lead.take(None)) if array is None else lead.follow(array)):
        return leadership.code(run)
    if array is not None and (job := os.environ.get("SLURM_JOB_ID")):
        replace_text(run.job_id, job)
    wakeup, interrupted = Wakeup(SIGNALS), False
    while True:
        interrupted |= _watch(lead, wakeup, write_end)
        if not lead.has_crashed():
            break
        if lead.crashes_again:
            return 1 if array is not None else give_up(run, f"{lead.crash}, {MOST} times within {WITHIN_S:g} s")
        if not patiently(lambda: lead.take(lead.number)):
            return leadership.code(run)
    if lead.code == BAD_INPUT and array is None and last_event(run.events) not in (None, "run_requeued", *LAST):
        return give_up(run, f"the next controller could not begin; the output of its job says why ({run.submitit})")
    return INTERRUPTED if interrupted and lead.code == 1 else max(0, lead.code)


def _watch(lead: Lead, wakeup: Wakeup, write_end: int) -> bool:
    """Wait for the end of a controller and pass signals on to it. Return whether SIGINT was among them."""
    interrupted = False
    while lead.leads:
        readable(wakeup.fd, 1.0)
        numbers = wakeup.drain()
        interrupted = interrupted or signal.SIGINT in numbers
        os.write(write_end, bytes(numbers))
    return interrupted


def give_up(run: RunDir, reason: str) -> int:
    """End a run that no controller can lead: write the end of its journal and cancel its steps."""
    from ftslurm.run import kept_state
    from ftslurm.slurm import client
    from ftslurm.submission import requeue

    complain(reason)
    kept = None
    with suppress(EnvironmentProblem, OSError):
        kept = kept_state.read(run)
    live = kept.live if kept is not None else ()
    steps = [unit.current.slurm_step for unit in live if unit.current.slurm_step]
    with suppress(OSError):
        requeue.end_journal(run, reason, "failed")
    client.cancel(*steps)
    return 1
