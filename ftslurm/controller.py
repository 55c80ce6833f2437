"""The loop that keeps a run running: gather what happened, decide, write it down, act.

One thread, one wait: a selector over the steps' pipes, a pipe that signals write to, and the next deadline. It makes
no Slurm call while the run goes on, and it never imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import signal
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ftslurm import channel, inbox
from ftslurm.config import Config, script_arguments
from ftslurm.core.decide import begin, deadline, decide
from ftslurm.core.model import (
    Action,
    Allocation,
    Announce,
    Assign,
    Begin,
    Cause,
    Ended,
    Event,
    Evict,
    Evidence,
    Finish,
    Granted,
    Hello,
    Inject,
    Kill,
    Launch,
    LighthouseUp,
    NewHistory,
    NodesLeft,
    Progressed,
    QuorumRefused,
    Ready,
    Record,
    StepId,
    Stop,
    StopAsked,
    StoreUp,
    TaskDone,
    TaskFailed,
)
from ftslurm.journal import Journal
from ftslurm.launchers.children import Answered, Children, Complained, Gone, Launcher, News, Said
from ftslurm.launchers.local import LocalLauncher
from ftslurm.launchers.srun import SrunLauncher
from ftslurm.rundir import LIGHTHOUSE, RunDir
from ftslurm.slurm import SRUN_FAILED, expand_hosts, read_srun
from ftslurm.wakeup import Wakeup

LOOK_S = 0.25  # how often the inbox is looked at: one listing of a local folder
NOT_OURS = "Requested node configuration is not available"  # what srun says of a node that the job has lost
NODES = "nodes"
log = logging.getLogger("ftslurm.controller")


class Controller:
    """One run, from its allocation to its end."""

    def __init__(self, config: Config, run: RunDir, allocation: Allocation, tell: Callable[[Mapping[str, Any]], None]):
        self.config = config
        self.tell = tell
        self.run_dir = run
        self.local = config.cluster.kind == "local"
        self.job = allocation.name
        self.launcher: LocalLauncher | SrunLauncher = (LocalLauncher if self.local else SrunLauncher)(config, run)
        self._origin = time.time() - time.monotonic()  # a clock that is unix time at the start and never goes back
        self.journal = Journal(run.events, clock=self.now)
        self.state = begin(config)
        self.events: list[Event] = [Granted(allocation)]
        self.wakeup = Wakeup((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2))
        self.children = Children(run.root, self.local)
        self.children.selector.register(self.wakeup.fd, 1)
        self.next_ping = self.next_look = 0.0
        self.last_complaint: dict[StepId, str] = {}

    def now(self) -> float:
        return self._origin + time.monotonic()

    def run(self) -> str:
        """Keep the run running until it is over; returns its outcome: succeeded, failed or stopped."""
        self._record_start(self.events[0])
        while not self.state.finished:
            self.state, actions = decide(self.state, self.events, self.now(), self.config)
            self.events = []
            self._carry_out(actions)
            if not self.events and not self.state.finished:
                self._gather()
        with contextlib.suppress(OSError):
            self.journal.close()
        return self.state.ending.outcome if self.state.ending else "failed"

    def _record_start(self, granted: Event) -> None:
        config, groups = self.config, self.config.groups
        assert isinstance(granted, Granted)
        started = self.journal.append(
            "run_started",
            run_id=self.run_dir.root.name,
            name=config.run.name,
            job_id=granted.allocation.name,
            versions=versions(),
            groups=groups.count,
            workers=groups.nodes * groups.workers,
            min_groups=groups.min,
            mode="local" if self.local else config.cluster.mode,
            cluster=config.cluster.kind,
            total_steps=config.job.total_steps,
            host=platform.node(),
            pid=os.getpid(),
        )
        self.started = [started]

    # --- what happened ---------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait until something happens or is due, and note what."""
        now = self.now()
        if now >= self.next_ping:
            self.next_ping = now + self.config.health.heartbeat_s
            for step in list(self.children.steps):
                self.children.send(step, channel.encode("ping"))
        if now >= self.next_look:
            self.next_look = now + LOOK_S
            self._read_inbox()
        due = deadline(self.state, now)
        wake = min(self.next_ping, self.next_look, now + LOOK_S if due is None else due + 0.001)
        for news in self.children.listen(max(0.0, wake - now)):
            self._note(news)
        for number in self.wakeup.drain():
            self.events.append(_asked_by_signal(number, self.config))

    def _read_inbox(self) -> None:
        for command in inbox.take(self.run_dir.inbox):
            if command["what"] == "stop":
                who = f"stopped by {command.get('user', '?')}"
                self.events.append(StopAsked(who, command.get("by", "?")))
            else:
                log.warning("unknown command ignored: %r", command)

    def _note(self, news: News) -> None:
        match news:
            case Said():
                try:
                    event = translate(news.id, news.message)
                except (KeyError, TypeError) as error:
                    log.warning("%s attempt %d: bad message %r: %r", *_name(news.id), news.message, error)
                    return
                if isinstance(event, Hello) and isinstance(news.message.get("slurm_step"), str):
                    self.children.identify(news.id, news.message["slurm_step"])
                if event is not None:
                    self.events.append(event)
            case Complained():
                self.last_complaint[news.id] = news.line
                if not self.local and (NOT_OURS in news.line or "Node failure on" in news.line):
                    command = ["squeue", "--noheader", f"--jobs={self.job}", "--format=%N"]
                    self.children.ask(NODES, command)  # which nodes are still the job's?
                evidence = None if self.local else read_srun(news.line)
                if evidence is not None and (evidence.node_lost or not self.children.killed(news.id)):
                    self.events.append(TaskFailed(news.id, evidence))  # after our own kill srun only echoes it
            case Gone():
                self.events.append(self._ended(news))
            case Answered(what=what, code=0, text=text) if what == NODES and text.strip():
                with contextlib.suppress(ValueError):
                    self.events.append(NodesLeft(tuple(expand_hosts(text.strip()))))

    def _ended(self, news: Gone) -> Ended:
        worst = next((code for code in news.codes if code), 0)
        complaint = self.last_complaint.pop(news.id, None)
        return Ended(
            news.id,
            code=worst if worst >= 0 else None,
            signal=-worst if worst < 0 else None,
            error=complaint if worst else None,
            launcher_failed=not self.local and worst == SRUN_FAILED,
            checkpoint=self._has_checkpoint(),
        )

    def _has_checkpoint(self) -> bool:
        folder = Path(self.config.checkpoint.dir or self.run_dir.checkpoints)
        try:
            return any(folder.iterdir())
        except OSError:
            return False

    # --- what is done ----------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        records = [action for action in actions if isinstance(action, Record)]
        told, self.started = self.started, []
        for record in records:
            fields = dict(record.fields)
            if record.event == "step_exited":
                step = StepId(str(fields["unit"]), int(str(fields["attempt"])))
                rank = int(str(fields["rank"])) if fields["rank"] is not None else 0
                fields["log"] = str(self._log_of(step, rank))
            written = self.journal.append(record.event, **fields)
            if record.event != "progress":
                log.info("%s", written)
            told.append(written)
        try:
            self.journal.flush(sync=any(r.event != "progress" for r in records))
        except OSError as error:  # what could not be written is kept, and written with the next lines
            log.error("the journal cannot be written: %s", error)
        for written in told:
            self.tell(written)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(action)
            case Assign():
                self.launcher.url = action.lighthouse
                self.children.send(action.id, self._assignment(action))
            case Begin():
                self.children.send(action.id, channel.encode("store", addr=action.addr, port=action.port))
            case Stop():
                self.children.send(action.id, channel.encode("stop"))
            case Kill():
                self.children.kill(action.id, self.launcher.kill_signal)
            case Announce(step, group, attempt, store):
                self.children.send(step, channel.encode("member", group=group, attempt=attempt, store=store))
            case Evict(step, group, attempt, store):
                self.children.send(step, channel.encode("evict", group=group, attempt=attempt, store=store))
            case NewHistory(step, number):
                self.children.send(step, channel.encode("new_history", step=number))
            case Inject():
                self.children.send(action.id, channel.encode("inject", fault="kill", task=action.task))
            case Finish() | Record():
                pass

    def _launch(self, action: Launch) -> None:
        if action.group is None:
            log_dir = self.run_dir.logs
        else:
            log_dir = self.run_dir.attempt(action.id.unit, action.id.attempt)
            with contextlib.suppress(OSError):  # the worker will say so, with the path
                log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        launcher: Launcher = self.launcher
        commands = launcher.commands(action, log_dir)
        step_log = self.run_dir.step_log(action.id.unit, action.id.attempt)
        problem = self.children.launch(action.id, commands, str(Path.cwd()), step_log)
        if problem is not None:
            self.events.append(TaskFailed(action.id, Evidence(None, None, error=problem, started=False)))
            if action.id not in self.children.steps:
                self.events.append(Ended(action.id, code=None, error=problem))

    def _assignment(self, action: Assign) -> bytes:
        job = self.config.job
        return channel.encode(
            "assign",
            group=action.group,
            attempt=action.id.attempt,
            lighthouse=action.lighthouse,
            script=job.script,
            module=job.module,
            args=script_arguments(job.args),
            ranks=[vars(rank) for rank in action.ranks],
            run_id=self.run_dir.root.name,
            groups=self.config.groups.count,
            max_restarts=self.config.restart.max_per_group,
        )

    def _log_of(self, step: StepId, rank: int) -> Path:
        """Where a person should look: the rank's own log if its script got that far, else what the launcher said."""
        path = self.run_dir.rank_log(step.unit, step.attempt, rank)
        return path if path.exists() else self.run_dir.step_log(step.unit, step.attempt)


def translate(step: StepId, message: channel.Message) -> Event | None:
    """A worker's message as an event; None for those that only say "I am here".

    Raises:
        KeyError, TypeError: a field is missing or is not what it should be.
    """
    task = _whole(message["task"])
    match message["type"]:
        case "hello":
            return Hello(step, task, str(message["host"]))
        case "ready":
            return Ready(step, task)
        case "store":
            return StoreUp(step, str(message["addr"]), _whole(message["port"]))
        case "address" if step.unit == LIGHTHOUSE:
            return LighthouseUp(step, str(message["url"]))
        case "refused" if step.unit == LIGHTHOUSE:
            return QuorumRefused(step, str(message["reason"]))
        case "progress":
            gap = message.get("gap_s")
            return Progressed(
                step,
                step=_whole(message["step"]),
                quorum_id=_whole(message["quorum_id"]),
                participants=_whole(message["participants"]),
                committed=_whole(message["committed"]),
                aborted=_whole(message["aborted"]),
                gap_s=gap if isinstance(gap, float) else None,
            )
        case "failed":
            error = _printable(str(message["error"]))
            return TaskFailed(step, Evidence(task, None, code=1, error=error, started=bool(message["started"])))
        case "exited" if message["code"] == 0:
            return TaskDone(step, task)
        case "exited":
            code = None if message["code"] is None else _whole(message["code"])
            number = None if message["signal"] is None else _whole(message["signal"])
            words = _printable(str(message.get("error") or "")) or None
            oom = bool(message["oom"])
            return TaskFailed(step, Evidence(task, None, code=code, signal=number, out_of_memory=oom, error=words))
        case _:
            return None


def _printable(text: str) -> str:
    """Without the escape sequences that a script may put into its messages, which end up on people's terminals."""
    return "".join(sign for sign in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text) if sign.isprintable())


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"not a whole number: {value!r}")
    return value


def _asked_by_signal(number: int, config: Config) -> StopAsked:
    if number == signal.SIGUSR2:
        reason = (
            f"the time limit of the Slurm job is {config.cluster.signal_s} s away (cluster.signal_s): stopped cleanly "
            f"before Slurm does it; ask for more with cluster.time (now {config.cluster.time or 'the default'})"
        )
        return StopAsked(reason, "slurm", Cause.TIME_LIMIT)
    name = signal.Signals(number).name
    return StopAsked(f"the controller was sent {name} (scancel, the time limit, or by hand)", name)


def _name(step: StepId) -> tuple[str, int]:
    return step.unit, step.attempt


def versions() -> dict[str, str]:
    """What this run runs on, for whoever reads the journal in a year."""
    found = {"python": platform.python_version()}
    for package in ("ftslurm", "torch", "torchft", "submitit", "hydra-core"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed here"
    return found
