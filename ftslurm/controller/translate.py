"""Translates input of workers, signals and Slurm to events of the core, and its actions to messages. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from ftslurm.config.schema import Config
from ftslurm.config.validate import FAULTS
from ftslurm.core.state import actions, events
from ftslurm.core.state.model import SLURM, Evidence, GuardReport, Requester, RunOutcome, Saved, Source, StepId
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.protocol import messages
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.field_types import MOST_TEXT
from ftslurm.protocol.stages import Stage
from ftslurm.security.json_text import is_whole


def order(action: actions.MessageAction) -> tuple[StepId, bytes]:
    """Return the Slurm step that an action sends a message to, and its line."""
    match action:
        case actions.Redirect(step, url):
            message: messages.Message = messages.LighthouseMoved(url)
        case actions.Servers(step, urls):
            message = messages.Servers(urls)
        case actions.Begin(step, addr, port, heals, floor):
            message = messages.Begin(addr, port, heals, floor)
        case actions.Broken(step, quorum):
            message = messages.Broken(quorum)
        case actions.SaveNow(step, number):
            message = messages.Save(number)
        case actions.Stop(step):
            message = messages.Stop()
        case actions.Announce(step, group, attempt, store):
            message = messages.Member(group, attempt, store)
        case actions.Evict(step, group, attempt, store, finished):
            message = messages.Evict(group, attempt, store, finished)
        case actions.SetAside(step, groups, after_s):
            message = messages.GuardsSilent(tuple(messages.SilentGroup(**vars(one)) for one in groups), after_s)
        case actions.NewHistory(step, number):
            message = messages.NewHistory(number)
        case actions.Inject(step, task, fault):
            message = messages.Inject(fault, task)
        case actions.Where(step, question):
            message = messages.Where(question)
        case actions.Dump(step):
            message = messages.Dump()
        case actions.TakeStacks(step, command, task, by):
            message = messages.TakeStacks(command, task, by)
        case _:
            assert_never(action)
    return step, messages.encode(message)


def translate(step: StepId, raw: messages.Raw, now: float, tasks: int) -> events.Event | None:
    """Translate a message of a Slurm step to an event; None: its type is unknown.

    Args:
        tasks: how many tasks the step has.

    Raises:
        BadMessage: a field is missing or is outside of its bounds.
    """
    if step.unit == LIGHTHOUSE:
        message: messages.FromWorker | messages.FromLighthouse | None = messages.FROM_LIGHTHOUSE.decode(raw)
    else:
        message = messages.FROM_WORKER.decode(raw)
    if message is None:
        return None
    if message.task >= tasks:
        raise messages.BadMessage(f"the step has no task {message.task}")
    return _event(step, message, now)


def _event(step: StepId, message: messages.FromWorker | messages.FromLighthouse, now: float) -> events.Event | None:
    match message:
        case messages.Hello(host, _, slurm_step, task=task):
            return events.Hello(step, task, host, slurm_step)
        case messages.Adopted():
            return events.Adopted(step, _guard_report(message))
        case messages.Ready(task=task):
            return events.Ready(step, task)
        case messages.Alive(state, number, stage, since_s, pilot, answers, task=task):
            at = stage or Stage.COMPUTING
            return events.Alive(step, task, now, state, number, at, since_s or 0.0, pilot, answers)
        case messages.Room(available_mb, worker_mb, task=task):
            return events.Room(step, task, available_mb, worker_mb)
        case messages.FirstQuorum():
            return events.FirstQuorum(step)
        case messages.Trace(text, task=task):
            return events.Traced(step, task, text)
        case messages.Notice(text):
            return events.Warned(step, text)
        case messages.Dumped(task=task):
            return events.Dumped(step, task)
        case messages.StacksTaken(command, file, error, task=task):
            return events.StacksTaken(step, task, command, file, error)
        case messages.Injected(fault, error, task=task):
            return events.InjectRefused(step, task, fault, error) if error else None
        case messages.StoreUp(addr, port):
            return events.StoreUp(step, addr, port)
        case messages.Progress(number, quorum_id, participants, committed, aborted, _, gap_s):
            return events.Progressed(step, number, quorum_id, participants, committed, aborted, gap_s)
        case messages.Serving(url):
            return events.Serving(step, url)
        case messages.Served(sessions, number):
            return events.Served(step, sessions, number)
        case messages.SessionOpened(sessions):
            return events.SessionOpened(step, sessions)
        case messages.Restored(number, path):
            return events.Restored(step, number, path or "")
        case messages.CanSave():
            return events.CanSave(step)
        case messages.Checkpointed(number, path, seconds, error):
            return events.Checkpointed(step, number, path or "", seconds, error)
        case messages.Failed():
            return events.TaskFailed(step, _evidence_of_exception(message))
        case messages.Done(task=task):
            return events.ScriptDone(step, task)
        case messages.Exited(code=0, task=task):
            return events.TaskDone(step, task)
        case messages.Exited():
            return events.TaskFailed(step, _evidence_of_exit(message))
        case messages.LighthouseUp(url):
            return events.LighthouseUp(step, url)
        case messages.QuorumIssued(quorum_id, members, steps):
            both = zip(members, steps, strict=False)
            return events.QuorumSeen(step, quorum_id, tuple((group, at) for group, at in both if group is not None))
        case messages.QuorumRefused(reason):
            return events.QuorumRefused(step, reason)
        case messages.QuorumBroken(quorum_id):
            return events.QuorumBroken(step, quorum_id)
        case messages.GroupAside(group, attempt, aside, seconds):
            return events.GroupAside(step, group, attempt, aside, seconds)
    assert_never(message)


def _evidence_of_exception(failed: messages.Failed) -> Evidence:
    return Evidence(
        failed.task,
        None,
        code=1,
        out_of_memory=failed.oom,
        error=failed.error or "",
        started=failed.started,
        cause=Cause.CODE_CHANGED if failed.changed else Cause.UNKNOWN if failed.refused else None,
        hardware=failed.hardware or None,
    )


def _evidence_of_exit(exited: messages.Exited) -> Evidence:
    error = events.LAST_LINE + exited.error if exited.error else None
    return Evidence(
        exited.task,
        None,
        code=exited.code,
        signal=exited.signal,
        out_of_memory=exited.oom,
        error=error,
        hardware=exited.hardware or None,
    )


def _guard_report(adopted: messages.Adopted) -> GuardReport:
    return GuardReport(
        adopted.task,
        ready=adopted.ready,
        assigned=adopted.group is not None,
        begun=adopted.begun,
        store=adopted.store,
        lighthouse=adopted.lighthouse,
        floor=adopted.floor or 0,
        step=adopted.step,
    )


def inject_asked(command: Mapping[str, Any]) -> events.InjectAsked | None:
    """Translate an `inject` command from the inbox to an event; None: it is invalid."""
    fault, group, rank = command.get("fault"), command.get("group"), command.get("rank") or 0
    if fault in FAULTS and (group is None or is_whole(group)) and is_whole(rank):
        return events.InjectAsked(str(fault), group, rank, requester(command))
    return None


def requester(command: Mapping[str, Any]) -> Requester:
    """Return the author of a command in the inbox: a user's id, or the text that is there instead."""
    who = command.get("by")
    return Requester(Source.USER, who if is_whole(who) else who[:MOST_TEXT] if isinstance(who, str) else "?")


def ended(
    step: StepId, codes: Sequence[int], killed: bool, complaint: str | None, saved: Saved | None, local: bool
) -> events.Ended:
    """Return the event for the end of a Slurm step's processes.

    Args:
        codes: their exit codes, negative for signals.
        killed: whether this controller has killed the step.
        complaint: the last words printed by srun, or locally by the guard, which cannot report its own kill.
        saved: the newest checkpoint at this moment.
    """
    if complaint is not None and "cli_filter plugin" in complaint and "mem" in complaint.lower():
        complaint += ". ftslurm gives srun --mem=0; 'cluster.srun=[\"--mem-per-cpu=0\"]' replaces it"
    worst = next((code for code in codes if code), 0)
    by_others = worst < 0 and not local and not killed
    return events.Ended(
        step,
        code=worst if worst >= 0 else None,
        signal=-worst if worst < 0 else None,
        error="srun was killed" if by_others else complaint if worst and not (local and worst < 0) else None,
        launcher_failed=not local and worst == ExitCode.SRUN_FAILED,
        checkpoint=saved,
    )


ANSWER_S = 5.0  # time limit for squeue's answer
MARGIN_S = 15.0  # from the end of the groups to that of the job: the journal, scontrol, a slurmctld that is busy


def asked_by_slurm(
    seen: tuple[str, int, str], config: Config, restarts: int = 0, batch: bool = False, by: Requester = SLURM
) -> list[events.StopAsked]:
    """Return why Slurm ends the run, from squeue's output for the job; empty if that does not show the cause.

    Args:
        seen: the job's state, how often it has been requeued, and Slurm's reason. While the job ends, its state is only
            COMPLETING; the reason has the cause.
        restarts: how often it had been requeued when this controller began.
        batch: as in asked_by_signal.
        by: the source of this.
    """
    if seen[1] > restarts:
        reason = "Slurm has requeued the job: the run goes on from the newest checkpoint when it starts again"
        return [events.StopAsked(reason, SLURM, Cause.PREEMPTED, RunOutcome.REQUEUED)]
    if "PREEMPTED" in seen:
        reason = (
            "Slurm has preempted the job for another one: ask for a partition or QOS that is not (cluster.sbatch.qos)"
        )
        return [events.StopAsked(reason, SLURM, Cause.PREEMPTED)]
    if "TIMEOUT" in seen or "TimeLimit" in seen:
        reason = f"the time limit of the Slurm job is over (cluster.time={config.cluster.time or 'the default'})"
        outcome = RunOutcome.GOES_ON if _outlives_job(config, batch) else RunOutcome.STOPPED
        return [events.StopAsked(reason, by, Cause.TIME_LIMIT, outcome)]
    return []


def _outlives_job(config: Config, batch: bool) -> bool:
    return batch and config.cluster.requeue and config.cluster.kind == "slurm"


def asked_by_signal(number: int, config: Config, batch: bool = False) -> events.StopAsked | events.JobEnds:
    """Return the event for a signal to the controller.

    Args:
        batch: whether its job is a batch job that can be requeued, and not an interactive allocation.
    """
    cluster = config.cluster
    if number == signal.SIGUSR2 and _outlives_job(config, batch):
        reason = "Slurm warns that the job is about to end (its time limit, or preemption)"
        margin_s = min(MARGIN_S, cluster.signal_s / 4)
        left_s = max(0.0, cluster.signal_s - config.stop.grace_s - margin_s)
        return events.JobEnds(reason, SLURM, Cause.TIME_LIMIT, left_s)
    if number == signal.SIGUSR2:
        how = "" if batch else ", and only a batch job can be requeued"
        reason = (
            f"the time limit of the Slurm job is {cluster.signal_s} s away (cluster.signal_s): stopped cleanly before "
            f"Slurm does it; ask for more with cluster.time (now {cluster.time or 'the default'}){how}"
        )
        return events.StopAsked(reason, SLURM, Cause.TIME_LIMIT)
    name = signal.Signals(number).name
    wait_s = ANSWER_S if number == signal.SIGTERM and config.cluster.kind != "local" else 0.0
    why = "by hand, or by a time limit" if cluster.kind == "local" else "scancel, the time limit, or by hand"
    reason = f"the controller was sent {name} ({why})"
    return events.StopAsked(reason, Requester(Source.SIGNAL, name), wait_s=wait_s)
