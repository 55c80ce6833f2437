"""Translates input of workers, signals and Slurm to events of the core. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.core.reduce import REQUESTS
from ftslurm.core.state import events
from ftslurm.core.state.model import SLURM, Evidence, Saved, StepId
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.launchers.scheduler import ANSWER_S
from ftslurm.protocol import messages
from ftslurm.protocol.causes import Cause, Says
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.field_types import MOST_TEXT
from ftslurm.protocol.run_states import FAULTS
from ftslurm.protocol.stages import Stage
from ftslurm.run import log_signs
from ftslurm.security.json_text import is_whole
from ftslurm.slurm.evidence import no_job, outlives_job


def translate(step: StepId, raw: messages.Raw, now: float, tasks: int) -> events.Event | None:
    """Translate a message of a Slurm step to an event; None: its type is unknown.

    Args:
        tasks: how many tasks the step has.

    Raises:
        BadMessage: a field is missing or is outside of its bounds.
    """
    message = messages.Report.decode(raw)
    if message is not None and message.task >= tasks:
        raise messages.BadMessage(f"the step has no task {message.task}")
    if isinstance(message, messages.LighthouseReport) and step.unit != LIGHTHOUSE:
        raise messages.BadMessage(f"only the Lighthouse says {message.kind}")
    match message:
        case None:
            return None
        case messages.Alive(state, number, stage, since_s, task=task):
            return events.Alive(step, task, now, state, number, stage or Stage.COMPUTING, since_s or 0.0)
        case messages.Failed(error, started, oom, refused, hardware, task=task):
            cause = Cause.UNKNOWN if refused else None
            known = Evidence(task, None, code=1, out_of_memory=oom, error=error or "", started=started, cause=cause)
            return events.TaskFailed(step, classified(replace(known, hardware=hardware or None)))
        case messages.Exited(code, number, oom, error, hardware, term, task=task) if code != 0:
            known = Evidence(task, None, code=code, signal=number, out_of_memory=oom, hardware=hardware or None)
            known = replace(known, cause=Cause.LEFT_ON_SIGTERM if term and code is not None else None)
            if error:
                said = log_signs.says(error) | {Says.PRINTED}
                known = replace(known, error=f"its log says: {error}", says=said)
            return events.TaskFailed(step, known, message)
    return events.Heard(step, message)


def classified(evidence: Evidence) -> Evidence:
    """Return a sign with what its words say: the core does not read them."""
    return replace(evidence, says=evidence.says | log_signs.says(evidence.error))


def asked(command: Mapping[str, Any]) -> events.Event | None:
    """Translate a user's command from the inbox to an event; None: it is another one, or invalid."""
    what, by, number = command["what"], command.get("by"), str(command.get("id"))[:100]
    by = by if is_whole(by) else "?"
    if what == "stop":
        return events.StopAsked(f"stopped by {str(command.get('user', '?'))[:80]}", by, command=number)
    group, rank, groups = (command.get(name) for name in ("group", "rank", "groups"))
    if what not in (*REQUESTS,) or not all(value is None or is_whole(value) for value in (group, rank, groups)):
        return None
    if what == "inject" and command.get("kind") not in (*FAULTS,):
        return None
    node, fault = (str(command.get(name) or "")[:MOST_TEXT] for name in ("node", "kind"))
    return events.Asked(what, by, number, group, rank, node, fault, groups or 0)


def ended(
    step: StepId, codes: Sequence[int], killed: bool, complaint: str | None, saved: Saved | None, direct: bool
) -> events.Ended:
    """Return the event for the end of a Slurm step's processes.

    Args:
        codes: their exit codes, negative for signals.
        killed: whether this controller has killed the step.
        complaint: the last words printed by srun, or locally by the guard, which cannot report its own kill.
        saved: the newest checkpoint at this moment.
        direct: as in Scheduler.
    """
    if complaint is not None and "cli_filter plugin" in complaint and "mem" in complaint.lower():
        complaint += ". ftslurm gives srun --mem=0; 'cluster.srun=[\"--mem-per-cpu=0\"]' replaces it"
    worst = next((code for code in codes if code), 0)
    by_others = worst < 0 and not direct and not killed
    return events.Ended(
        step,
        code=worst if worst >= 0 else None,
        signal=-worst if worst < 0 else None,
        error="srun was killed" if by_others else complaint if worst and not (direct and worst < 0) else None,
        launcher_failed=not direct and worst == ExitCode.SRUN_FAILED,
        no_job=no_job(complaint or ""),
        checkpoint=saved,
    )


def read_attach(evidence: Evidence) -> Evidence | None:
    """Convert the failure of an attaching srun to evidence about the step it attaches to; None: it is none."""
    if evidence.code == ExitCode.NO_GUARD:
        error = "the step has not outlived its controller, or cannot be reached: see its step.log"
        return replace(evidence, code=None, cause=Cause.UNKNOWN, error=error)
    if evidence.code == ExitCode.END_REPORTED:
        return None
    if evidence.code == ExitCode.DETACHED:
        return replace(evidence, code=None, signal=int(signal.SIGKILL), error="its guard has been killed")
    return evidence


MARGIN_S = 15.0  # from the end of the groups to that of the job: the journal, scontrol, a slurmctld that is busy


def asked_by_signal(number: int, config: Config, batch: bool = False) -> events.StopAsked | events.JobEnds:
    """Return the event for a signal to the controller.

    Args:
        batch: whether its job is a batch job that can be requeued, and not an interactive allocation.
    """
    cluster = config.cluster
    if number == signal.SIGUSR2 and outlives_job(config, batch):
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
    wait_s = ANSWER_S if number == signal.SIGTERM and not config.local else 0.0
    why = "by hand, or by a time limit" if config.local else "scancel, the time limit, or by hand"
    reason = f"the controller was sent {name} ({why})"
    return events.StopAsked(reason, name, wait_s=wait_s)
