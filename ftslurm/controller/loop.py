"""The loop that keeps a run running: gather what happened, decide, write it down, act.

One thread, one wait: a selector over the steps' pipes, a pipe that signals write to, and the next deadline. It makes
no Slurm call while the run goes on, and it never imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.controller.mishaps import Mishaps, decide, described
from ftslurm.controller.signals import SIGNALS, Wakeup
from ftslurm.controller.slurm_queue import Jobs, srun_names
from ftslurm.controller.translate import (
    ANSWER_S,
    MARGIN_S,
    asked_by_signal,
    asked_by_slurm,
    by,
    ended,
    inject_asked,
    order,
    translate,
)
from ftslurm.core.groups import progress_lines
from ftslurm.core.jobs.supply import array, over
from ftslurm.core.lineage import continuity
from ftslurm.core.rules import begin, deadline
from ftslurm.core.state.actions import Action, AskState, Assign, Attach, Cancel, Finish, Kill, Launch, Probe, Record
from ftslurm.core.state.events import (
    Alive,
    Ended,
    Event,
    Explained,
    Granted,
    Hello,
    InjectRefused,
    NodesLeft,
    NodeState,
    StopAsked,
    TaskFailed,
)
from ftslurm.core.state.model import Allocation, Evidence, StepId
from ftslurm.core.state.past import Past
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.core.state.units import step_tasks
from ftslurm.launchers.assignment import assignment
from ftslurm.launchers.background import Answered
from ftslurm.launchers.local import LocalLauncher
from ftslurm.launchers.srun import SrunLauncher
from ftslurm.launchers.step_command import Launcher
from ftslurm.launchers.step_processes import Children, Complained, Gone, News, Said
from ftslurm.protocol import messages
from ftslurm.run import inbox, leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.first_step_report import with_last_lines
from ftslurm.run.journal import Journal
from ftslurm.run.metadata import about
from ftslurm.run.replay import claim, home, newest_checkpoint
from ftslurm.security import run_key
from ftslurm.security.json_text import brief
from ftslurm.slurm import commands, parse

LOOK_S = 0.25  # how often the inbox is looked at: one listing of a local folder
NOT_OURS = "Requested node configuration is not available"  # what srun says of a node that the job has lost
NODES, WHY, LOOK, STATE = "nodes", "why", "look ", "state "  # what is asked of Slurm aside
LOOK_S_AT_MOST = 60.0  # srun gives up by itself after 10 to 20 s if a node does not answer
log = logging.getLogger("ftslurm.controller.loop")


class Controller:
    """One run, from its allocation to its end."""

    def __init__(
        self,
        config: Config,
        run: RunDir,
        allocation: Allocation,
        tell: Callable[[Mapping[str, Any]], None],
        past: Past | None = None,
        number: int | None = None,
        signals: int | None = None,
        after: str = "",
    ) -> None:
        """Begin.

        Args:
            tell: called with every event once it is in the journal.
            past: what an earlier controller had come to.
            number: ours among those that took the lead.
            signals: a pipe of signals, see Wakeup.
            after: how the controller before has crashed.
        """
        self.config, self.after = config, after
        if after:
            log.warning("%s; this one goes on", after)
        self.tell = tell
        self.run_dir = run
        self.local = config.cluster.kind == "local"
        self.array = array(config)  # groups have jobs of their own, and go on when ours ends
        self.job = allocation.name
        self.launcher: LocalLauncher | SrunLauncher = (LocalLauncher if self.local else SrunLauncher)(config, run)
        self._origin = time.time() - time.monotonic()  # a clock that is unix time at the start and never goes back
        self.journal = Journal(run.events, clock=self.now)
        with contextlib.suppress(OSError):
            self.run_dir.alive.touch(mode=0o600)
        self.state = begin(config)
        homes = frozenset({home(self.job, os.environ.get("SLURM_RESTART_COUNT") or 0), platform.node()})
        saved, refused = newest_checkpoint(config, run), claim(config, run)
        self.events: list[Event] = [Granted(allocation, saved, past, refused, homes)]
        self.wakeup = Wakeup(SIGNALS, signals)
        greeting = messages.encode(messages.RunKey(run_key.load_or_make(run.key).hex()))
        self.children = Children(run.root, self.local, self._make_sure, greeting, config.logs.max_mb)
        for fd in (self.wakeup.fd, *([] if signals is None else [signals])):
            self.children.selector.register(fd, selectors.EVENT_READ)
        self.jobs = Jobs(config, run, self.children)
        self.alive: dict[tuple[StepId, int], Alive] = {}  # the last of each task, until the next decision
        self.number = number
        self.leaving: str | None = None  # why another controller goes on, with all that runs
        self.leave_at = float("inf")  # its job ends soon
        self.next_ping = self.next_look = self.led = 0.0
        self.last_complaint: dict[StepId, str] = {}
        self.mishaps = Mishaps(self._mishap, self.now)

    def now(self) -> float:
        return self._origin + time.monotonic()

    def run(self) -> str:
        """Keep the run running until it is over; returns its outcome: succeeded, failed or stopped.

        Or until another controller goes on with it, and with all that runs: `left` if we have made way for it,
        `superseded` if it thought that we were lost. Then nothing more is written.
        """
        try:
            return self._run()
        except leadership.Superseded:
            log.warning("another controller has taken the lead")
            self.children.leave()
            return leadership.SUPERSEDED

    def _run(self) -> str:
        self._make_sure()
        self._record_start(self.events[0])
        due: float | None = 0.0
        while not self.state.finished and self.leaving is None:
            while not self.events and self.leaving is None and (due is None or self.now() < due):
                self._gather(due)
            self._gather(0.0)  # what was said is heard before anything is judged: we may have been stopped ourselves
            events, self.events = [*self.alive.values(), *self.events], []
            self.alive = {}
            self.state, actions = decide(self.state, events, self.now(), self.config, self.mishaps)
            if isinstance(self.launcher, SrunLauncher):
                self.launcher.jobs = srun_names(self.state)
            self._carry_out(actions)
            if self.state.ending is not None:
                self.leaving = None  # there is nothing left to go on with
            due = deadline(self.state, self.now(), self.config)
        self.children.asides.forget(LOOK)  # at a node that is gone srun goes on trying, after the run's end
        outcome = self.state.ending.outcome if self.state.ending else "left"
        if self.state.finished:
            self.jobs.end(over(self.state))
        else:
            self.children.leave()  # when the journal says so we touch nothing any more
            self._carry_out([line for unit in self.state.groups for line in progress_lines.told(unit, self.now())[1]])
            self.tell(self.journal.append(leadership.LEFT, reason=self.leaving, leader=self.number))
        with contextlib.suppress(OSError):
            self.journal.close()
        return outcome

    def _make_sure(self) -> None:
        """Nobody else has taken the lead meanwhile. (We may have been stopped, or a file server away.)"""
        self.led = self.now()
        if self.number is not None and not leadership.held(self.run_dir, self.number):
            raise leadership.Superseded

    def _record_start(self, granted: Event) -> None:
        assert isinstance(granted, Granted)
        fields = about(self.config, self.run_dir, granted.allocation.name, self.number, granted.past)
        self.started = [self.journal.append("run_started", **fields, after=self.after or None)]

    # --- what happened ---------------------------------------------------------------------------------------------

    def _gather(self, due: float | None) -> None:
        """Wait until something happens or is due, and note what."""
        now = self.now()
        if now >= self.next_ping:
            self.next_ping = now + self.config.health.heartbeat_s
            self._make_sure()
            with contextlib.suppress(OSError):
                os.utime(self.run_dir.alive)
            ping = messages.encode(messages.Ping(continuity.reached(self.state, self.config)))
            for step in list(self.children.steps):
                self.children.send(step, ping)
        if now >= self.leave_at:
            self.leaving = "the time limit of its job is near, and its successor's job has not started"
        if now >= self.next_look:
            self.next_look = now + LOOK_S
            self._read_inbox()
        wake = min(self.next_ping, self.next_look, now + LOOK_S if due is None else due + 0.001)
        for news in self.children.listen(max(0.0, wake - now)):
            with self.mishaps.survived(described(news), news):
                self._note(news)
        for number in self.wakeup.drain():
            self._signalled(number)

    def _mishap(self, event: str, **fields: object) -> None:
        self.started.append(self.journal.append(event, **fields))  # told with the next decision

    def _read_inbox(self) -> None:
        for command in inbox.take(self.run_dir.inbox):
            with self.mishaps.survived("a command", command):
                self._obey(command)

    def _obey(self, command: Mapping[str, Any]) -> None:
        if command["what"] == "stop":
            who = f"stopped by {str(command.get('user', '?'))[:80]}"
            self.events.append(StopAsked(who, by(command)))
        elif command["what"] == "inject" and (drill := inject_asked(command)) is not None:
            self.events.append(drill)
        elif command["what"] == "hand_over" and command.get("leader") == self.number is not None:
            self.leaving = str(command.get("reason"))[:500]
        elif command["what"] in ("pilot", "leaving", "scale"):
            self.events += self.jobs.told(command, self.now())
        else:
            log.warning("unknown command ignored: %s", brief(command))

    def _signalled(self, number: int) -> None:
        """A signal means the end. On Slurm scancel, preemption and the time limit all send SIGTERM: squeue tells.

        If the groups have jobs of their own (array mode), our job's end is theirs only if somebody wants it so.
        """
        if self.array and self.job.isdigit() and number == signal.SIGUSR2:
            self.jobs.ask_successor()
            self.leave_at = self.now() + max(1.0, self.config.cluster.signal_s - MARGIN_S)
            return
        if self.array and self.job.isdigit() and number == signal.SIGTERM:
            self.children.asides.ask(WHY, commands.job_state(self.job), timeout_s=ANSWER_S)
            return
        self.events.append(asked_by_signal(number, self.config, commands.is_batch(os.environ)))
        if number == signal.SIGTERM and self.job.isdigit():
            self.children.asides.ask(WHY, commands.job_state(self.job))

    def _note(self, news: News) -> None:
        match news:
            case Said():
                try:
                    event = translate(news.id, news.message, self.now(), step_tasks(news.id.unit, self.config))
                except messages.BadMessage as error:
                    log.warning("%s attempt %d: bad message %s: %r", *_name(news.id), brief(news.message), error)
                    return
                if isinstance(event, Hello) and event.slurm_step is not None:
                    self.children.identify(news.id, event.slurm_step)
                elif isinstance(event, Hello) and (named := news.message.get("slurm_step")) is not None:
                    log.warning("%s attempt %d: no step of Slurm's, ignored: %s", *_name(news.id), brief(named))
                if isinstance(event, Alive):
                    self.alive[event.id, event.task] = event
                elif event is not None:
                    self.events.append(event)
            case Complained():
                self.last_complaint[news.id] = news.line
                if not self.local and (NOT_OURS in news.line or "Node failure on" in news.line):
                    self._ask_nodes()
                if parse.out_of_time(news.line, self.job):
                    self.events += asked_by_slurm(
                        ["TIMEOUT"], self.config, batch=commands.is_batch(os.environ), by="srun"
                    )
                evidence = None if self.local else parse.read_srun(news.line)
                if evidence is not None and news.id in self.children.adopted:
                    self._make_sure()  # it ends so, too, when another controller has attached
                    evidence = parse.read_attach(evidence)
                ours = self.children.killed(news.id)  # after that srun only echoes it
                if evidence is not None and (not ours or (evidence.node_lost and evidence.started)):
                    self.events.append(TaskFailed(news.id, evidence))
            case Gone():
                words, saved = self.last_complaint.pop(news.id, None), self.state.lineage.checkpoint
                with self.mishaps.survived("what is in checkpoint.dir", news):  # the end of a step is never dropped
                    saved = newest_checkpoint(self.config, self.run_dir)
                self.events.append(ended(news.id, news.codes, news.killed, words, saved, self.local))
            case Answered():
                self._answered(news)

    def _answered(self, news: Answered) -> None:
        if news.what == NODES and news.code == 0 and news.text.strip():
            with contextlib.suppress(ValueError):
                self.events.append(NodesLeft(tuple(parse.expand_hosts(news.text.strip()))))
        elif news.what == WHY:
            restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
            said = asked_by_slurm(news.text.split(), self.config, restarts, commands.is_batch(os.environ))
            if self.array and said:
                self.leaving = f"its job ends: {said[0].reason}"
                return
            why = [asked_by_signal(signal.SIGTERM, self.config)] if self.array else []
            self.events += [*why, *said, Explained()]
        elif news.what.startswith(STATE) and news.code == 0 and "|" in news.text:
            state, _, reason = news.text.splitlines()[0].strip().partition("|")
            self.events.append(NodeState(news.what.removeprefix(STATE), state.lower(), reason))
        elif news.what.startswith(LOOK):
            self.events.append(parse.read_probe(news.what.removeprefix(LOOK), news.text))
        else:
            self.events += self.jobs.answered(news)

    def _ask_nodes(self) -> None:
        """Which nodes are still the job's?"""
        if self.job.isdigit() and self.config.cluster.mode == "steps":
            self.children.asides.ask(NODES, commands.job_nodes(self.job))

    # --- what is done ----------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        records = [action for action in actions if isinstance(action, Record)]
        if self.now() > self.led + self.config.health.heartbeat_s:
            self._make_sure()
        told, self.started = self.started, []
        for record in records:
            fields = dict(record.fields)
            if record.event == "step_exited":
                step = StepId(str(fields["unit"]), int(str(fields["attempt"])))
                rank = int(str(fields["rank"])) if fields["rank"] is not None else 0
                fields["log"] = str(self._log_of(step, rank))
            elif record.event == "no_first_step":
                fields = with_last_lines(fields, self.run_dir)
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
            case Attach():
                self._attach(action)
            case Assign():
                self.children.send(action.id, assignment(self.config, self.run_dir, self.launcher, action))
            case Kill():
                self.children.kill(action.id, self.launcher.kill_signal, stuck=action.stuck)
            case Cancel(step):
                self._cancel(step)
            case AskState(node):
                self.children.asides.ask(STATE + node, commands.node_state(node), timeout_s=LOOK_S_AT_MOST)
            case Probe(node, where):
                command = self.launcher.look(node, where)
                self.children.asides.ask(LOOK + node, command.argv, env=command.env, timeout_s=LOOK_S_AT_MOST)
                self._ask_nodes()  # while slurmctld is away, a probe that does not come back proves nothing
            case Finish() | Record():
                pass
            case _:
                if (words := order(action)) is not None:
                    self.children.send(*words)
                else:
                    self.events += self.jobs.act(action, self.now())

    def _cancel(self, step: StepId) -> None:
        """A drill: scancel of the step, as an administrator would do it."""
        slurm_id = self.children.steps[step].slurm_id if step in self.children.steps else None
        if slurm_id is None:
            error = "scancel needs a Slurm step" if self.local else "Slurm has not named the step"
            self.events.append(InjectRefused(step, 0, "cancel", error))
        else:
            self.children.asides.ask(f"scancel {slurm_id}", commands.cancel(slurm_id))

    def _launch(self, action: Launch) -> None:
        if action.id.unit == LIGHTHOUSE:
            log_dir = self.run_dir.logs
        else:
            log_dir = self.run_dir.attempt(action.id.unit, action.id.attempt)
            with contextlib.suppress(OSError):  # the worker will say so, with the path
                log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.launcher.url = self.state.lighthouse_url  # a Lighthouse that follows another takes its port
        launcher: Launcher = self.launcher
        commands = launcher.commands(action, log_dir)
        step_log = self.run_dir.step_log(action.id.unit, action.id.attempt)
        problem = self.children.launch(action.id, commands, str(Path.cwd()), step_log)
        if problem is not None:
            self.events.append(TaskFailed(action.id, Evidence(None, None, error=problem, started=False)))
            if action.id not in self.children.steps:
                self.events.append(Ended(action.id, code=None, error=problem))

    def _attach(self, action: Attach) -> None:
        """Only steps on Slurm outlive their controller."""
        assert isinstance(self.launcher, SrunLauncher)
        command = self.launcher.attach(action.id, action.place, known=action.slurm_step is not None)
        step_log = self.run_dir.step_log(action.id.unit, action.id.attempt)
        problem = self.children.adopt(action.id, command, str(Path.cwd()), step_log, action.slurm_step)
        if problem is not None:
            self.events.append(Ended(action.id, code=None, error=problem))

    def _log_of(self, step: StepId, rank: int) -> Path:
        """Where a person should look: the rank's own log if its script got that far, else what the launcher said."""
        path = self.run_dir.rank_log(step.unit, step.attempt, rank)
        return path if path.exists() else self.run_dir.step_log(step.unit, step.attempt)


def _name(step: StepId) -> tuple[str, int]:
    return step.unit, step.attempt
