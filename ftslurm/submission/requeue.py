"""Continues a run whose job has ended: the job is requeued, or a new one takes over the run directory.

Requeueing keeps the job's id, needs no right to submit from a compute node, and is what users of squeue expect. Its
price: Slurm holds a requeued job for as long as credentials live (AuthInfo=cred_expire, two minutes by default), and no
process survives the job to release it earlier. A new job would start at once on an idle cluster; its age in the queue
is new in both cases (measured on Slurm 22.05: SubmitTime is reset). So a new job is only submitted where Slurm does not
requeue (JobRequeue=0, no scontrol on the node).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor.story import Story
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.records import RunFinished, StepExited
from ftslurm.run import kept_state, leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event
from ftslurm.run.journal_lines import read
from ftslurm.run.journal_writer import Journal
from ftslurm.security import owned_files
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import read_state
from ftslurm.submission import observing, submit

TRIES, WAIT_S = 6, 2.0  # the job has some seconds left (controller.translate.MARGIN_S)
ANSWER_S = 20.0  # time-out of one Slurm command


def go_on(config: Config, run: RunDir) -> str | None:
    """Let the run go on in another job, after the controller in this process has ended.

    Returns:
        The reason if the run cannot go on, else None.
    """
    why = requeue(os.environ)
    if why is None:
        return None
    further = f"ftslurm resume {run.root} goes on where this one was"
    if config.cluster.controller == "here":
        return f"the job could not be requeued: {why}; submit with sbatch --requeue to let it; {further}"
    try:
        submit.submit(config, run, os.environ["SLURM_JOB_ID"])
    except EnvironmentProblem as error:
        return f"the job could not be requeued ({why}), and no other could be submitted ({error}); {further}"
    return None


def end_journal(run: RunDir, reason: str, outcome: str = "stopped", by: int | None = None) -> Event:
    """Write the end of the journal of a run without a controller, so that no reader waits for it; tell its hooks.

    The steps that still run, as far as the kept state tells, end with it. `by` is the user who has asked for it.
    """
    kept = None
    with suppress(EnvironmentProblem):  # the run ends, whatever is known of its steps
        kept = kept_state.read(run)
    with closing(Journal(run, kept=kept)) as journal:
        journal.flush()
        status = Story(run).status
        for unit in kept.live if kept is not None else ():
            step = next((of.step for of in status.groups if of.group == unit.group), None)
            ended = {"event": StepExited.event, **unit.names, "cause": Cause.CANCELLED.value}
            ended |= {"error": "the run has no controller any more", "step": step}
            journal.append(read(ended))
        reason = reason[:1000]
        steps, restarts = status.step, status.restarts
        line = journal.append(RunFinished(outcome=outcome, reason=reason, steps=steps, restarts=restarts, by=by))
    observing.tell_the_end(run)
    return line


def requeue(environ: Mapping[str, str]) -> str | None:
    """Requeue the job of this process. Return why Slurm refuses, or None if the job is or will be requeued.

    The request may be carried out although scontrol reports a failure: Slurm sends SIGTERM to all processes of the job
    at once, and to this scontrol, too, which may still wait for its answer; or the answer came too late. The next
    request is then refused, because the job is pending.
    """
    job = commands.job_name(environ)
    state, reason, requeued = _seen(job, environ)
    if requeued:
        return None
    if state in ("CANCELLED", "COMPLETING") and reason != "TimeLimit":
        return f"the job has been cancelled ({state})"
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT_S)
        answer = client.call(commands.requeue(job), ANSWER_S)
        if answer.ok or _seen(job, environ)[2]:
            return None
        if not answer.transient:
            break
    return answer.text


def _seen(job: str, environ: Mapping[str, str]) -> tuple[str, str, bool]:
    """Return Slurm's state of a job, its reason, and whether the job has been requeued since it started."""
    state, restarts, reason = read_state(client.call(commands.job_state(job), ANSWER_S).out)
    return state, reason, restarts > int(environ.get("SLURM_RESTART_COUNT") or 0)


def of_this_job(config: Config, environ: Mapping[str, str]) -> RunDir | None:
    """Find the run that this job began before it was requeued; None if there is none.

    A batch script may start several runs in sequence: return the one with the same settings, else the newest that is
    not over.
    """
    if not commands.is_batch(environ) or not int(environ.get("SLURM_RESTART_COUNT") or 0):
        return None
    root = Path(config.run.dir).parent if config.run.dir else Path(config.run.root)
    found = [run for run in map(RunDir, root.glob("*")) if run.job() == environ["SLURM_JOB_ID"]]
    ours = [run for run in found if owned_files.is_own(run.root) and owned_files.is_own(run.config)]
    ours.sort(key=lambda run: run.config.stat().st_mtime, reverse=True)
    same = [run for run in ours if _settings(compose.load(run.config)) == _settings(config)]
    return next((run for run in (*same, *ours) if run in same or not leadership.is_over(run)), None)


def _settings(config: Config) -> str:
    """Return the configuration as text, without the run's folder."""
    return compose.dump(replace(config, run=replace(config.run, dir=None)))
