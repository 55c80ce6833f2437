"""What workers, signals and Slurm say, as events of the core, and what its actions say to workers. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from ftslurm.config.schema import Config
from ftslurm.config.validate import FAULTS
from ftslurm.core.state.actions import (
    Action,
    Begin,
    Broken,
    Dump,
    Inject,
    NewHistory,
    Redirect,
    SaveNow,
    Servers,
    Stop,
    Where,
)
from ftslurm.core.state.adoption import Word
from ftslurm.core.state.events import (
    LAST_LINE,
    Adopted,
    Alive,
    Checkpointed,
    Dumped,
    Ended,
    Event,
    FirstQuorum,
    Hello,
    InjectAsked,
    InjectRefused,
    JobEnds,
    LighthouseUp,
    Progressed,
    QuorumBroken,
    QuorumRefused,
    QuorumSeen,
    Ready,
    Restored,
    ScriptDone,
    Served,
    Serving,
    SessionOpened,
    StopAsked,
    StoreUp,
    TaskDone,
    TaskFailed,
    Traced,
    Warned,
)
from ftslurm.core.state.model import Announce, Cause, Evict, Evidence, Saved, StepId
from ftslurm.core.state.saving import GOES_ON
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.protocol import messages
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.stages import Stage
from ftslurm.security.json_text import MOST, brief, is_finite, is_whole
from ftslurm.security.names import is_node, is_step

_MOST_TEXT = 2 * messages.LONGEST  # characters of a text that are kept: a worker sends none as long


def order(action: Action) -> tuple[StepId, bytes] | None:
    """The step that an action speaks to, and the line for it; None: it does not speak to workers alone."""
    match action:
        case Redirect(step, url):
            return step, messages.encode("lighthouse", url=url)
        case Servers(step, urls):
            return step, messages.encode("servers", urls=urls)
        case Begin(step, addr, port, heals, floor):
            return step, messages.encode("store", addr=addr, port=port, heals=heals, floor=floor)
        case Broken(step, number):
            return step, messages.encode("broken", quorum=number)
        case SaveNow(step, number):
            return step, messages.encode("save", step=number)
        case Stop(step):
            return step, messages.encode("stop")
        case Announce(step, group, attempt, store):
            return step, messages.encode("member", group=group, attempt=attempt, store=store)
        case Evict(step, group, attempt, store):
            return step, messages.encode("evict", group=group, attempt=attempt, store=store)
        case NewHistory(step, number):
            return step, messages.encode("new_history", step=number)
        case Inject(step, task, fault):
            return step, messages.encode("inject", fault=fault, task=task)
        case Where(step):
            return step, messages.encode("where")
        case Dump(step):
            return step, messages.encode("dump")
    return None


def translate(step: StepId, message: messages.Message, now: float, tasks: int) -> Event | None:
    """A worker's message as an event; None for those that only say "I am here".

    Args:
        tasks: how many the step has.

    Raises:
        KeyError, TypeError: a field is missing or is not what it should be.
    """
    task = _whole(message["task"], 0, tasks - 1)
    match message["type"]:
        case "hello":
            name = message.get("slurm_step")
            return Hello(step, task, _node(message["host"]), name if is_step(name) else None)
        case "adopted":
            return Adopted(step, _word(task, message))
        case "ready":
            return Ready(step, task)
        case "alive":
            number = message.get("step")
            return Alive(
                step,
                task,
                now,
                state=str(message.get("state") or "?")[:1],
                step=number if _is_count(number) else None,  # a sign of life counts, whatever else is wrong with it
                stage=Stage(stage) if _is_count(stage := message.get("stage")) and stage <= 4 else Stage.COMPUTING,
                since_s=_seconds(message.get("since_s")),
                pilot=message["pilot"] if isinstance(message.get("pilot"), bool) else None,
            )
        case "quorum" if step.unit == LIGHTHOUSE:
            both = zip(message["members"], message["steps"], strict=False)
            members = tuple((_whole(group), _whole(number)) for group, number in both if group is not None)
            return QuorumSeen(step, _whole(message["quorum_id"]), members)
        case "quorum":
            return FirstQuorum(step)
        case "trace":
            return Traced(step, _text(message["text"], keep="\n"))
        case "warning":
            return Warned(step, _text(message["text"]))
        case "dumped":
            return Dumped(step, task)
        case "injected" if message.get("error"):
            return InjectRefused(step, task, _text(message["fault"]), _text(message["error"]))
        case "store":
            return StoreUp(step, _text(message["addr"]), _port(message["port"]))
        case "address" if step.unit == LIGHTHOUSE:
            return LighthouseUp(step, _url(message["url"]))
        case "refused" if step.unit == LIGHTHOUSE:
            return QuorumRefused(step, _text(message["reason"]))
        case "broken" if step.unit == LIGHTHOUSE:
            return QuorumBroken(step, _whole(message["quorum_id"]))
        case "progress":
            gap = message.get("gap_s")
            return Progressed(
                step,
                step=_whole(message["step"]),
                quorum_id=_whole(message["quorum_id"], -1),  # torchft's manager has -1 before its first
                participants=_whole(message["participants"]),
                committed=_whole(message["committed"]),
                aborted=_whole(message["aborted"]),
                gap_s=float(gap) if is_finite(gap) and gap >= 0 else None,
            )
        case "serving":
            return Serving(step, _text(message["url"]))
        case "served":
            number = message.get("step")
            return Served(step, _whole(message["sessions"]), number if _is_count(number) else None)
        case "session":
            return SessionOpened(step, _whole(message["sessions"]))
        case "failed":
            error = _text(message["error"] or "")
            oom = bool(message.get("oom"))
            started = bool(message["started"])
            cause = Cause.UNKNOWN if message.get("refused") else None  # not its fault: there was nobody to heal from
            evidence = Evidence(task, None, code=1, out_of_memory=oom, error=error, started=started, cause=cause)
            return TaskFailed(step, evidence)
        case "restored":
            return Restored(step, _whole(message["step"]), _text(message.get("path") or ""))
        case "checkpoint":
            why = message.get("error")
            return Checkpointed(
                step,
                _whole(message["step"]),
                _text(message.get("path") or ""),
                _seconds(message.get("seconds")),
                None if why is None else _text(why),
            )
        case "done":
            return ScriptDone(step, task)
        case "exited" if message["code"] == 0:
            return TaskDone(step, task)
        case "exited":
            code = None if message["code"] is None else _whole(message["code"], 0, 255)
            number = None if message["signal"] is None else _whole(message["signal"], 1, 64)
            last = _text(message.get("error") or "")
            words = LAST_LINE + last if last else None
            oom = bool(message["oom"])
            return TaskFailed(step, Evidence(task, None, code=code, signal=number, out_of_memory=oom, error=words))
        case _:
            return None


def _word(task: int, message: messages.Message) -> Word:
    store, url, step = message.get("store"), message.get("lighthouse"), message.get("step")
    if store is not None and not (isinstance(store, list) and len(store) == 2):
        raise TypeError(f"not an address and a port: {brief(store)}")
    return Word(
        task,
        ready=bool(message["ready"]),
        assigned=message["group"] is not None,
        begun=bool(message["begun"]),
        store=None if store is None else (_text(store[0]), _port(store[1])),
        lighthouse=None if url is None else _text(url),
        floor=_whole(message.get("floor") or 0),
        step=None if step is None else _whole(step),
    )


def _text(value: object, keep: str = "") -> str:
    """A text without the escape sequences that a script may put into it, which would end up on people's terminals."""
    if not isinstance(value, str):
        raise TypeError(f"not a text: {brief(value)}")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", value[:_MOST_TEXT])
    return "".join(sign for sign in text if sign.isprintable() or sign in keep)


def _seconds(value: object) -> float:
    return float(value) if is_finite(value) and 0 <= value < 1e9 else 0.0


def _is_count(value: object) -> TypeGuard[int]:
    return is_whole(value) and value >= 0


def _whole(value: object, least: int = 0, most: int = MOST - 1) -> int:
    if not is_whole(value) or not least <= value <= most:
        raise TypeError(f"not a whole number from {least} to {most}: {brief(value)}")
    return value


def _port(value: object) -> int:
    return _whole(value, 1, 65535)


def _node(value: object) -> str:
    if not is_node(value):
        raise TypeError(f"not the name of a node: {brief(value)}")
    return str(value)


def _url(value: object) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        known = text == value and parts.hostname is not None and parts.port is not None
    except ValueError:
        known = False
    if not known:
        raise TypeError(f"not an address: {brief(value)}")
    return text


def inject_asked(command: Mapping[str, Any]) -> InjectAsked | None:
    """A drill that somebody wants, by what lies in the inbox; None: it is none."""
    fault, group, rank = command.get("fault"), command.get("group"), command.get("rank") or 0
    if fault in FAULTS and (group is None or is_whole(group)) and is_whole(rank):
        return InjectAsked(str(fault), group, rank, by(command))
    return None


def by(command: Mapping[str, Any]) -> str | int:
    """Who has left a command in the inbox: a user's id, or what was written there instead."""
    who = command.get("by")
    return who if is_whole(who) else who[:_MOST_TEXT] if isinstance(who, str) else "?"


def ended(
    step: StepId, codes: Sequence[int], killed: bool, complaint: str | None, saved: Saved | None, local: bool
) -> Ended:
    """The end of a step's processes, as an event.

    Args:
        codes: their exit codes, negative for signals.
        killed: whether we have killed it.
        complaint: the last line that srun printed, or locally the guard, which can say nothing of its own kill.
        saved: the newest checkpoint at this moment.
    """
    worst = next((code for code in codes if code), 0)
    by_others = worst < 0 and not local and not killed
    return Ended(
        step,
        code=worst if worst >= 0 else None,
        signal=-worst if worst < 0 else None,
        error="srun was killed" if by_others else complaint if worst and not (local and worst < 0) else None,
        launcher_failed=not local and worst == ExitCode.SRUN_FAILED,
        checkpoint=saved,
    )


ANSWER_S = 5.0  # how long squeue may take to say why
MARGIN_S = 15.0  # from the end of the groups to that of the job: the journal, scontrol, a slurmctld that is busy


def asked_by_slurm(
    words: list[str], config: Config, restarts: int = 0, batch: bool = False, by: str = "slurm"
) -> list[StopAsked]:
    """Why Slurm ends the run, by what squeue tells of the job; empty if that says nothing more.

    Args:
        words: the job's state, how often it has been requeued, and Slurm's reason. While the job comes to its end the
            state says only that (COMPLETING), and the reason why.
        restarts: how often it had been when this controller began.
        batch: as in asked_by_signal.
        by: who has said so.
    """
    if any(re.fullmatch("[0-9]{1,9}", word) and int(word) > restarts for word in words):
        reason = "Slurm has requeued the job: the run goes on from the newest checkpoint when it starts again"
        return [StopAsked(reason, "slurm", Cause.PREEMPTED, "requeued")]
    if "PREEMPTED" in words:
        reason = "Slurm has preempted the job for another one: ask for a partition or QOS that is not (cluster.qos)"
        return [StopAsked(reason, "slurm", Cause.PREEMPTED)]
    if "TIMEOUT" in words or "TimeLimit" in words:
        reason = f"the time limit of the Slurm job is over (cluster.time={config.cluster.time or 'the default'})"
        return [StopAsked(reason, by, Cause.TIME_LIMIT, GOES_ON if _outlives_job(config, batch) else "stopped")]
    return []


def _outlives_job(config: Config, batch: bool) -> bool:
    return batch and config.cluster.requeue and config.cluster.mode == "steps"


def asked_by_signal(number: int, config: Config, batch: bool = False) -> StopAsked | JobEnds:
    """What a signal to the controller means.

    Args:
        batch: whether it is a batch job that can be started again, and not an allocation that somebody holds.
    """
    cluster = config.cluster
    if number == signal.SIGUSR2 and _outlives_job(config, batch):
        reason = "Slurm warns that the job is about to end (its time limit, or preemption)"
        margin_s = min(MARGIN_S, cluster.signal_s / 4)
        left_s = max(0.0, cluster.signal_s - config.stop.grace_s - margin_s)
        return JobEnds(reason, "slurm", Cause.TIME_LIMIT, left_s)
    if number == signal.SIGUSR2:
        how = "" if batch else ", and only a batch job can be requeued"
        reason = (
            f"the time limit of the Slurm job is {cluster.signal_s} s away (cluster.signal_s): stopped cleanly before "
            f"Slurm does it; ask for more with cluster.time (now {cluster.time or 'the default'}){how}"
        )
        return StopAsked(reason, "slurm", Cause.TIME_LIMIT)
    name = signal.Signals(number).name
    wait_s = ANSWER_S if number == signal.SIGTERM and config.cluster.kind == "slurm" else 0.0
    return StopAsked(f"the controller was sent {name} (scancel, the time limit, or by hand)", name, wait_s=wait_s)
