"""Ends a run: asks its controller; without a controller, asks Slurm to end its jobs."""

from __future__ import annotations

from contextlib import suppress

from ftslurm.api import answers, steering
from ftslurm.config.schema import Config
from ftslurm.core.state.model import Saved
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone
from ftslurm.monitor import sentences
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import fold_all
from ftslurm.monitor.story import Story
from ftslurm.protocol.records import Command, JournalEvent, RunRequeued
from ftslurm.run import configuration, inbox, liveness, stored_checkpoints
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader, first_line, last_event, last_line
from ftslurm.run.replay import newest_checkpoint, read_past
from ftslurm.submission import jobs_of_run, observing, requeue


def stop(run: RunDir, save: bool = False) -> str:
    """End a run. Return what has happened, for a person; it may not have ended yet.

    Args:
        save: save a checkpoint before; without one the run goes on.

    Raises:
        NotDone: no checkpoint could be saved, or the controller does not answer.
    """
    if save:
        try:
            steering.save(run)
        except FtslurmError as error:
            raise NotDone(f"{error}. Nothing is stopped: ftslurm stop {run.root} stops it without saving") from error
    config = configuration.to_steer(run)
    status, reader = _glance(run)
    if message := _end_without_controller(config, run, status):
        return message
    try:
        inbox.put(run.inbox, "stop")
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"{error}. End it with: {_by_hand(config, run)}") from error
    if last_event(run.events) == RunRequeued.event:
        return f"{run.root.name} is between two jobs: it stops as soon as the next one starts"
    if status.started is None and (job := _slurm_job(config, run)) is not None:
        return f"{run.root.name} had not started: Slurm job {job} stops as soon as it starts"
    if status.started is not None:
        answer, status = answers.wait_for_answer(reader, status, _is_stop, answers.ANSWER_S)
        if answer is None and status.outcome == "running":
            return _unanswered(config, run)
    return f"{run.root.name} is stopping{_kept(config, run)}"


def _glance(run: RunDir) -> tuple[RunStatus, JournalReader]:
    """Return whether a run has begun and is over, by two lines of its journal, and a reader of what follows."""
    reader = JournalReader(run.events)
    with suppress(OSError):
        reader.offset = run.events.stat().st_size
    return fold_all(filter(None, (first_line(run.events), last_line(run.events)))), reader


def _by_hand(config: Config, run: RunDir) -> str:
    """Return the command that ends a run whose controller reads no inbox."""
    return f"scancel {job}" if (job := _slurm_job(config, run)) else f"kill {(first_line(run.events) or {}).get('pid')}"


def _kept(config: Config, run: RunDir) -> str:
    """Return which committed steps are in a checkpoint so far, to follow "is stopping"; "": none, or not known.

    An object store is not asked, it may answer late: of its checkpoints those count that the journal tells of.
    """
    status = Story(run).status
    if status.step == 0:
        return ""
    saved = None if status.checkpoint is None else Saved("", status.checkpoint)
    if saved is None and stored_checkpoints.url(config) is None:
        with suppress(FtslurmError, OSError):
            saved = newest_checkpoint(config, run)
    if saved is None or saved.damaged is not None:
        return f": nothing is saved of its {sentences.plural(status.step, 'committed step')}"
    if saved.step is None:
        return f": at step {status.step}; its script has saved in a format of its own in {saved.path}"
    after = max(0, status.step - saved.step)
    lost = f"and {sentences.plural(after, 'committed step')} after it {'is' if after == 1 else 'are'} not saved"
    return f": the last checkpoint is of step {saved.step}, {lost if after else 'with every committed step'}"


def _slurm_job(config: Config, run: RunDir) -> str | None:
    return run.job() if config.cluster.kind != "local" else None


def _end_without_controller(config: Config, run: RunDir, status: RunStatus) -> str | None:
    """End a run whose controller cannot. Return a message for the user, or None if the controller must be asked."""
    job, array = _slurm_job(config, run), config.cluster.kind == "array"
    began = status.outcome in ("running", "stopped")
    # In array mode the job may wait in the queue while another process leads the run.
    silent_s = liveness.silent_s(config, run) if began and (array or status.outcome == "running") else None
    no_leader = not array or silent_s is not None or status.started is None
    if job is not None and began and no_leader and jobs_of_run.take_out_of_queue(job):
        jobs_of_run.cancel(run)
        requeue.end_journal(run, f"stopped in the queue: Slurm job {job} was cancelled")
        return f"{run.root.name} was waiting in the queue: Slurm job {job} is cancelled"
    if status.outcome != "running":
        return f"{run.root.name} is over already: {status.outcome}"
    if (never := jobs_of_run.never_started(config, run)) is not None:
        inbox.put(run.inbox, "stop")  # Slurm may know the job after all: that of another cluster, or one it requeues
        requeue.end_journal(run, never.reason, never.outcome)
        return f"{run.root.name} never started: {never.reason}"
    silent = None if silent_s is None else f"its controller has not been heard for {sentences.seconds(silent_s)}"
    why = jobs_of_run.abandoned(config, run) or (silent if config.cluster.kind == "local" else None)
    if why is not None and run.events.exists():
        past, _ = read_past(run)
        requeue.end_journal(
            run, f"stopped without a controller: {why}", left=past.live.values() if past is not None else ()
        )
        return f"{run.root.name} had lost its controller and counts as stopped now: {why}"
    has_jobs = job is not None or array
    if silent_s is not None and has_jobs and (cancelled := jobs_of_run.cancel(run)):
        observing.tell_the_end(run)
        return f"{run.root.name} is stopped: {silent}. Cancelled: Slurm job {', '.join(cancelled)}"
    return None


def _is_stop(record: JournalEvent) -> bool:
    return isinstance(record, Command) and record.what == "stop"


def _unanswered(config: Config, run: RunDir) -> str:
    """Return why there is nothing left to answer.

    Raises:
        NotDone: the controller is there, and silent.
    """
    why = jobs_of_run.abandoned(config, run)  # the controller may have ended meanwhile
    if why is not None:
        return f"{run.root.name} cannot be stopped: {why}"
    raise NotDone(
        f"the controller of {run.root.name} has not answered within {answers.ANSWER_S:g} s. It will stop when it reads "
        f"{run.inbox}; what it does is in {run.controller_log}. To end it without: {_by_hand(config, run)}"
    )
