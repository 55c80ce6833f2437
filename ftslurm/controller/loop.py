"""Runs the controller's loop: gather events, decide, write the journal, act.

One thread waits at one place: a selector over the steps' pipes, a pipe that signals write to, and the next deadline.
The loop never waits for a Slurm command and never imports torch.

    gather   _gather: messages of workers, lines of srun, exits, answers of Slurm, signals, the inbox -> events
    decide   error_boundary.decide: events -> the next state and a list of actions (core/rules.py)
    write    _write: the records among the actions and the new state, on disk before anything is done, or told that not
    act      _act: all other actions (execution.py)
    tell     _tell: the records again, to those who show them; after the actions, which do not wait for that
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from immutables import Map
from typing_extensions import assert_never

from ftslurm.code import own_copy
from ftslurm.config.schema import Config, fixed_standbys, most_groups, standby_each
from ftslurm.controller import kill_switch, open_files
from ftslurm.controller.error_boundary import ErrorBoundary, decide
from ftslurm.controller.execution import Executor
from ftslurm.controller.signals import SIGNALS, Wakeup
from ftslurm.controller.translate import (
    asked,
    asked_by_signal,
    classified,
    ended,
    read_attach,
    translate,
)
from ftslurm.core.groups import reports
from ftslurm.core.lineage import continuity
from ftslurm.core.reduce import REQUESTS
from ftslurm.core.rules import begin
from ftslurm.core.state.actions import Action, Ask, Attach, Probe
from ftslurm.core.state.budget import LONG_S
from ftslurm.core.state.events import Alive, Event, Explained, Granted, Heard, Leaving, StopAsked, TaskFailed
from ftslurm.core.state.model import Evidence, Phase, Saved, StepId, Trait
from ftslurm.core.state.units import step_tasks
from ftslurm.launchers.background import Answered
from ftslurm.launchers.scheduler import AskOwnState, Scheduler
from ftslurm.launchers.step_processes import Children, LauncherPrinted, News, Received, StepEnded
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.run import inbox, kept_state, leadership, liveness, stored_checkpoints
from ftslurm.run.directory import RunDir
from ftslurm.run.journal_writer import Journal
from ftslurm.run.kept_state import Kept
from ftslurm.run.metadata import run_started
from ftslurm.security import programs, run_key
from ftslurm.security.json_text import brief
from ftslurm.slurm.commands import is_batch

# The state of a run is a tree of values without cycles: a hundred thousand with 1,000 groups. A garbage collection
# after every 700 new values, the default, takes longer than the decisions.
COLLECT_GARBAGE_AFTER = (100_000, 50, 100)
SRUN_SAYS, MOST_SAID = "srun: error: ", 500
INBOX_S = 0.25  # how often the inbox is read: one listing of a local folder
ENDS_STEPS = ("restart", "drain", "scale")  # requests by which a group leaves
INBOX_SHARE = 20  # of this process's time it takes at most the 20th part, whatever members of a group leave there
SETTLES_S = 1.5  # after a signal the controller leads on for so long: it sees what else ends with its job
ENDS_S = 5.0  # and so much longer if a step is beginning or being ended
LINGERS_S = 30.0  # a Lighthouse serves for so long after its controller has handed over
GONE_S = 10.0  # the run directory is missing for so long: it was removed or moved, and no file server blinks
UNWRITTEN_S = 10.0  # at the end of a run; Slurm kills a cancelled job after 30 s (KillWait)
log = logging.getLogger("ftslurm.controller.loop")


class Controller:
    """Controls one run, from its allocation to its end."""

    def __init__(
        self,
        config: Config,
        run: RunDir,
        scheduler: Scheduler,
        tell: Callable[[Mapping[str, Any]], None],
        kept: Kept | None = None,
        number: int | None = None,
        signals: int | None = None,
        after: str = "",
    ) -> None:
        """Begin a run, or go on with it.

        Args:
            tell: called with every event once it is in the journal.
            kept: what the previous controller has left, or None for the first one.
            number: this controller's leader number; None: a local run, which has one controller only.
            signals: a pipe of signals, see Wakeup.
            after: how the previous controller crashed.
        """
        if after:
            log.warning("%s; this one goes on", after)
        self.config, self.run_dir, self.tell, self.number = config, run, tell, number
        self.scheduler, allocation = scheduler, scheduler.allocation()
        # The groups' jobs go on when this job ends.
        self.separate_jobs = config.job_per_group and scheduler.job is not None
        # A clock that is unix time at the start, and never goes back: not behind the controller before either.
        self._origin = max(time.time(), kept.time if kept is not None else 0.0) - time.monotonic()
        self.journal = Journal(run, self.now, self._leads, number or 0, kept)
        with contextlib.suppress(OSError):
            liveness.touch(run.alive)

        again = os.environ.get("SLURM_RESTART_COUNT") or 0
        self.home = platform.node() if config.job_per_group else f"{allocation.name}.{again}"
        granted = Granted(allocation, home=self.home, leaf_of=Map(scheduler.leaves()))
        if kept is None:
            self.state = begin(config)
            saved, refused = stored_checkpoints.begin_with(config, run)
            granted = replace(granted, checkpoint=saved, refused=refused)
        else:  # an object store that does not answer must not end a run that goes on
            self.state = kept.state
            unmade = kept_state.unmade(run, kept.state)
            granted = replace(granted, checkpoint=self._newest_checkpoint(), resumed=kept.time, unmade=unmade)
        self.events: list[Event] = [granted]
        self.alive: dict[tuple[StepId, int], Alive] = {}  # each task's last message, until the next decision
        self.start = run_started(config, run, allocation.name, number, self.state, after or None)
        self.over = False  # the journal has its last line
        self.written: list[dict[str, object]] = []  # lines of the journal that `tell` has not been called with yet
        self.commands = set[str]()  # names of files in the inbox that were read
        self.commanded = False  # some of them since the last decision
        self.closed = threading.Event()
        self.writes_since = inf  # since when the loop has waited for a disk; inf: it does not

        self.copy = open(programs.ARCHIVE, "rb") if programs.ARCHIVE else None  # noqa: SIM115, PTH123 until the end
        self.wakeup = Wakeup(SIGNALS, signals)
        greeting = messages.encode(messages.RunKey(run_key.load_or_make(run.key).hex()))
        self.children = Children(run.root, scheduler, self._check_lead, greeting, config.logs.max_mb)
        for fd in (self.wakeup.fd, *([] if signals is None else [signals])):
            self.children.selector.register(fd, selectors.EVENT_READ)
        self.executor = Executor(config, run, self.children)
        self.events += self.executor.read_notes()
        self.errors = ErrorBoundary(self._record, self.now)

        self.leaving: str | None = None  # why another controller goes on with all that runs
        self.leaves_at = 0.0
        self.next_ping = self.next_inbox = self.lead_checked = 0.0
        self.next_count = self.now() + LONG_S  # of RPCs to the scheduler
        self.unwritable = ""  # the warning that lines cannot be written
        self.last_there = inf  # when the run directory was there last
        self.last_whole = self.now()  # and its copy of ftslurm
        self.last_printed: dict[StepId, str] = {}  # by the launcher of each step

    def now(self) -> float:
        return self._origin + time.monotonic()

    def run(self, tell_at_once: Callable[[Mapping[str, Any]], None] = lambda _: None) -> str:
        """Keep the run running until it is over, or until another controller goes on with it.

        Args:
            tell_at_once: called with the lines that must not wait until they can be written.

        Returns:
            The outcome of the run: succeeded, failed, stopped or requeued; `left` if this controller has handed over to
            another one; `superseded` if another one has taken the lead because this one was silent. After `left` and
            `superseded` nothing more is written and all steps run on.
        """
        self.tell_at_once, ending = tell_at_once, self.state.ending
        if ending is not None and self.state.finished and self.state.home == self.home:
            self.executor.end(self.state)
            return ending.outcome  # the controller before has died before it asked for the next job
        gc.set_threshold(*COLLECT_GARBAGE_AFTER)
        groups = self.config.groups
        tasks = groups.nodes * groups.workers if self.scheduler.direct else 1
        most = most_groups(self.config)
        steps = most + (most if standby_each(self.config) else fixed_standbys(self.config)) + 1
        open_files.allow(steps * tasks)
        threading.Thread(target=self._beat_while_writing, name="alive", daemon=True).start()
        try:
            self._check_lead()
            self._record(self.start)
            said = liveness.complaint(self.run_dir)
            died = said and f"the controller before has died while {said}: what it did then is not known"
            for text in filter(None, (self.journal.damage, died)):
                self._record(records.Warned(group=None, text=text))
            due = 0.0
            while True:  # once at least: an earlier controller may have finished its part of the run
                while not self.events and not self._leaves() and self.now() < due:
                    self._gather(due)
                self._gather(0.0)  # after a pause of this process: read all messages before judging any silence
                actions = self._decide()
                is_kept = self._write(actions)
                self._act(actions)
                if is_kept:
                    self._flush(sync=True)  # readers on other nodes
                self._tell()
                due = self.state.wakes
                if self.state.finished or self._leaves():
                    return self._end()
        except leadership.Superseded:
            log.warning("another controller has taken the lead")
            self.children.leave()
            self.children.end_by_order()
            return leadership.SUPERSEDED

    def _leaves(self) -> bool:
        """Return whether to hand over now. The next leader would not know why a step is being ended."""
        ends_s = ENDS_S if self.state.table.count(Phase.STARTING, Phase.STOPPING) else 0.0
        return self.leaving is not None and self.now() >= self.leaves_at + ends_s

    def _end(self) -> str:
        self.children.background.kill(Probe)  # srun goes on trying at a lost node
        ending = self.state.ending if self.state.finished else None
        if ending is not None:
            self.executor.end(self.state)
        else:
            self._leave()
        self._close_journal()
        return ending.outcome if ending is not None else "left"

    def _leave(self) -> None:
        """Leave the steps to the next controller. Nothing that is decided now is carried out here."""
        self.children.leave()  # before the journal records it: then the next controller may adopt the steps
        if self.config.lighthouse.kind != "ftslurm":
            self.children.end_by_order()  # it cannot hand over to its successor
        lines = (reports.line(unit, self.now()) for unit in self.state.groups)
        self._tell_rpcs()
        self.events.append(Leaving(self.leaving or "", self.number))
        self._write([*(line for line in lines if line is not None), *self._decide()])
        self._tell()

    def linger(self) -> None:
        """After `left`: wait until the next controller's Lighthouse has taken over, or the run is over."""
        until = self.now() + LINGERS_S
        while self.children.alive() and self.now() < until and leadership.outcome(self.run_dir) is None:
            time.sleep(INBOX_S)
        self.children.end_by_order()

    def _close_journal(self) -> None:
        """Close the journal. If the end of the run cannot be written, leave it for `status`, and wait UNWRITTEN_S."""
        until, ending = self.now() + UNWRITTEN_S, self.state.ending if self.state.finished else None
        while ending is not None and not self._flush(sync=True) and self.now() < until:
            said = f"the run has ended ({ending.outcome}: {ending.reason}), and {self.journal.complaint}"
            self._beat(said)
            time.sleep(INBOX_S)
        with contextlib.suppress(OSError):
            self.journal.close()
        self.closed.set()

    def _check_lead(self) -> None:
        """Raise Superseded if another controller leads: this process may have been paused, or a file server away."""
        self.lead_checked = self.now()
        if not self._leads():
            raise leadership.Superseded

    def _leads(self) -> bool:
        return self.number is None or leadership.held(self.run_dir, self.number)

    # --- gather ------------------------------------------------------------------------------------------------------

    def _gather(self, due: float) -> None:
        """Wait until something happens or is due, and collect the events."""
        now = self.now()
        if now >= self.next_ping:
            self.next_ping = now + self.config.heartbeat_s
            self._ping()
        if now >= self.next_inbox:
            commands = inbox.read(self.run_dir.inbox, self.commands)
            self.next_inbox = now + max(INBOX_S, INBOX_SHARE * (self.now() - now))
            waits = False
            for name, command in commands.items():
                with self.errors.contain("a command", command):
                    waits = waits or (command["what"] in ENDS_STEPS and self._takes_over())
                    if waits and command["what"] in REQUESTS:
                        continue  # who holds the training's state is not known yet; it is read again
                    self.commanded = True
                    self.commands.add(name)
                    self._commanded(command)
        wake = min(self.next_ping, self.next_inbox, due + 0.001)
        for news in self.children.listen(max(0.0, wake - now)):
            with self.errors.contain(f"news ({type(news).__name__})", news):
                self._heard(news)
        for number in self.wakeup.drain():
            self._signalled(number)

    def _takes_over(self) -> bool:
        """Return whether steps of the controller before have yet to be adopted; before the first decision any may."""
        return any(isinstance(event, Granted) for event in self.events) or bool(self.state.table.names(Trait.ADOPTING))

    def _ping(self) -> None:
        """Show the guards and other candidates for the lead that this controller lives."""
        self._check_lead()
        self._flush(sync=False)
        self._beat(self.journal.complaint)
        self._look_for_files()
        ping = messages.encode(messages.Ping(continuity.reached(self.state, self.config)))
        for step in list(self.children.steps):
            self.children.send(step, ping)

    def _look_for_files(self) -> None:
        """End the run if somebody has removed its directory: no verb finds it any more, and what it writes is lost.

        Its copy of ftslurm, without which nothing starts, is written again, but not while the directory is removed.
        """
        try:
            self.run_dir.root.stat()
            if self.copy is None or self.run_dir.package.exists():
                self.last_whole = self.now()
            elif self.now() > self.last_whole + GONE_S:
                own_copy.restore(self.copy, self.run_dir.package)
                text = f"somebody had removed {self.run_dir.package}: it is written again"
                self._record(records.Warned(group=None, text=text))
        except FileNotFoundError:
            if self.now() > self.last_there + GONE_S:
                self.last_there = inf  # once
                reason = f"somebody has removed or moved the run directory {self.run_dir.root}"
                self.events.append(StopAsked(reason, "ftslurm"))
            return
        except OSError:  # the file server is away
            pass
        self.last_there = self.now()

    def _beat(self, complaint: str) -> None:
        """Show that this controller lives."""
        with contextlib.suppress(OSError):
            liveness.touch(self.run_dir.alive, complaint)

    def _beat_while_writing(self) -> None:
        """Keep the lead while the loop waits for a disk, since another controller would have to wait for it as well.

        Not for ever: workers end themselves after orphan_after_s without a controller.
        """
        while not self.closed.wait(self.config.heartbeat_s):
            waits_s = self.now() - self.writes_since
            if self.config.heartbeat_s < waits_s < self.config.orphan_after_s / 2 and self._leads():
                self._beat(self.journal.complaint)

    def _commanded(self, command: Mapping[str, Any]) -> None:
        """Read a command from the inbox."""
        if (event := asked(command)) is not None:
            self.events.append(event)
        elif command["what"] == "leaving":
            self.events += self.scheduler.reported(command)
        else:
            log.warning("unknown command ignored: %s", brief(command))

    def _signalled(self, number: int) -> None:
        """End the run on a signal. After SIGTERM ask Slurm for the cause: scancel, preemption or the time limit.

        If the groups have jobs of their own (array mode), only the controller's job ends, unless it was cancelled.
        """
        if self.separate_jobs and number == signal.SIGUSR2:
            self.leaving, self.leaves_at = "its job is about to end", self.now() + SETTLES_S
        elif self.separate_jobs and number == signal.SIGTERM:
            self._ask(AskOwnState(signalled=True))
        else:
            self.events.append(asked_by_signal(number, self.config, is_batch(os.environ)))
            if number == signal.SIGTERM and self.scheduler.job is not None:
                self._ask(AskOwnState(signalled=True))

    def _ask(self, ask: Ask) -> None:
        self.events += self.executor.ask(ask)

    def _heard(self, news: News) -> None:
        match news:
            case Received():
                self._received(news)
            case LauncherPrinted(step, line):
                if self._printed(step, line):  # else it would hide why
                    return
                before = self.last_printed.get(step, "")
                goes_on = before.startswith(SRUN_SAYS) and line.startswith(SRUN_SAYS)  # a site's filter uses two lines
                self.last_printed[step] = f"{before}; {line.removeprefix(SRUN_SAYS)}"[:MOST_SAID] if goes_on else line
            case StepEnded(step, codes, killed):
                printed, saved = self.last_printed.pop(step, None), self.state.lineage.checkpoint
                with self.errors.contain("what is in checkpoint.dir", news):  # the end of a step is never dropped
                    saved = self._newest_checkpoint()
                self.events.append(ended(step, codes, killed, printed, saved, self.scheduler.direct))
            case Answered(request, answer):
                found = request.read(answer)
                if isinstance(request.action, AskOwnState) and self.separate_jobs:
                    self._own_job_ends(found)
                else:
                    self.events += found
            case _:
                assert_never(news)

    def _newest_checkpoint(self) -> Saved | None:
        """Return the newest checkpoint. An object store is not asked again: only this run saves there, and tells."""
        if stored_checkpoints.url(self.config) is not None:
            return self.state.lineage.checkpoint
        return stored_checkpoints.newest(self.config, self.run_dir)

    def _received(self, news: Received) -> None:
        """Translate a message of a worker or guard."""
        try:
            event = translate(news.id, news.message, self.now(), step_tasks(news.id.unit, self.config))
        except messages.BadMessage as error:
            log.warning("%s: bad message %s: %r", news.id, brief(news.message), error)
            return
        said = event.message if isinstance(event, Heard) else None
        if isinstance(said, messages.Hello) and said.slurm_step is not None:
            self.children.identify(news.id, said.slurm_step)
        if isinstance(event, Alive):
            self.alive[event.id, event.task] = event
        elif event is not None:
            self.events.append(event)

    def _printed(self, step: StepId, line: str) -> bool:
        """Read a line of a launcher's stderr: the first sign of most failures. Return whether it tells of a task."""
        told = False
        for found in self.scheduler.printed(line):
            match found:
                case Ask():
                    self._ask(found)
                case Evidence():
                    told = True
                    self._failing(step, classified(found))
                case StopAsked() if self.separate_jobs:
                    self._own_job_ends([found])
                case _:
                    self.events.append(found)
        return told

    def _failing(self, step: StepId, evidence: Evidence) -> None:
        """Handle what the launcher tells of a failure of its step."""
        failure: Evidence | None = evidence
        if step in self.children.adopted:
            self._check_lead()  # the same line comes if another controller has attached to the step
            failure = read_attach(evidence)
        killed = self.children.killed(step)  # then srun only reports our own kill, unless a node is lost
        if failure is not None and (not killed or (evidence.node_lost and evidence.started)):
            self.events.append(TaskFailed(step, failure))
            if evidence.cause in (Cause.CANCELLED, Cause.PREEMPTED) and not self.separate_jobs:
                self._ask(AskOwnState())  # in its grace time a preempted job only loses its steps

    def _own_job_ends(self, answer: Sequence[Event]) -> None:
        """Handle the answer to why the controller's own job ends, while the groups' jobs go on.

        Only a cancellation ends the run: without an answer another controller takes over.
        """
        stops = [event for event in answer if isinstance(event, StopAsked)]
        if stops:
            self.leaving = f"its job ends: {stops[0].reason}"
        elif any(isinstance(event, Explained) and not event.answered for event in answer):
            self.leaving = "its job ends, and Slurm does not say why"
        else:
            self.events += [asked_by_signal(signal.SIGTERM, self.config), *answer]

    # --- decide, write, act ------------------------------------------------------------------------------------------

    def _decide(self) -> list[Action]:
        events, self.events = [*self.alive.values(), *self.events], []
        self.alive = {}
        self.state, actions = decide(self.state, events, self.now(), self.config, self.errors)
        self.leaving = self.leaving or self.state.hands_over
        if self.state.ending is not None:
            self.leaving = None  # the run ends, so no other controller is to continue it
        return actions

    def _record(self, record: records.JournalRecord) -> None:
        """Append a record to the journal. It is flushed, and told, with those of the next decision."""
        if self.over:  # its last line says how the run has ended
            log.info("after the end: %s", record)
            return
        self.over = isinstance(record, records.RunFinished)
        written = self.journal.append(record)
        if not isinstance(record, records.Progress):
            log.info("%s", written)
        self.written.append(written)

    def _write(self, actions: list[Action]) -> bool:
        """Write the records among the actions into the journal, and what the next controller needs.

        Returns:
            Whether there is something that the next controller needs.
        """
        if self.now() > self.lead_checked + self.config.heartbeat_s:
            self._check_lead()
        if self.now() >= self.next_count or self.state.finished:
            self._tell_rpcs()
        for record in (action for action in actions if isinstance(action, records.JournalRecord)):
            if isinstance(record, records.StepExited):
                record = replace(record, log=str(self._log_of(StepId(record.unit, record.attempt), record.rank or 0)))
            self._record(record)
        is_kept = self.journal.keep(self.state, always=self.commanded)
        self.commanded = False
        kill_switch.pull(self.written, before=True)
        self._flush(sync=False)
        kill_switch.pull(self.written, before=False)
        if self.commands and self.journal.is_kept:
            self.commands -= inbox.remove(self.run_dir.inbox, self.commands)
        return is_kept

    def _tell_rpcs(self) -> None:
        counted, self.next_count = self.children.background, self.now() + LONG_S
        if counted.rpcs:
            self._record(records.SlurmAsked(rpcs=counted.rpcs, most=counted.most))
            counted.told()

    def _flush(self, sync: bool) -> bool:
        """Write the journal; return whether all is written. Tell when that begins to fail, and when it works again."""
        failed_before, self.writes_since = self.journal.error is not None, self.now()
        done, self.writes_since = self.journal.flush(sync), inf
        if failed_before != (self.journal.error is not None) and not self.state.finished:
            said, over = self.journal.complaint, self.unwritable
            self.unwritable = f"{said}: the training goes on" if said else ""
            text = self.unwritable or self.journal.mended
            self._record(records.Warned(group=None, text=text, over="" if said else over))
            self.tell_at_once(self.written[-1])
        return done

    def _tell(self) -> None:
        """Pass what has been written to `tell`."""
        written, self.written = self.written, []
        for event in written:
            self.tell(event)

    def _log_of(self, step: StepId, rank: int) -> Path:
        """Return the log for a person to read: the rank's own if it exists, else the launcher's output."""
        path = self.run_dir.rank_log(step.unit, step.attempt, rank)
        return path if path.exists() else self.run_dir.step_log(step.unit, step.attempt)

    def _act(self, actions: list[Action]) -> None:
        """Carry out the actions. An error in one of them is recorded, and the others are carried out.

        A step that cannot be adopted because of such an error may still run, so that error ends the controller.
        """
        self.scheduler.state = self.state
        for action in actions:
            if isinstance(action, Attach):
                self.events += self.executor.carry_out(action)
                continue
            with self.errors.contain(f"an action ({type(action).__name__})", action):
                self.events += self.executor.carry_out(action)
                continue
            self.events += self.executor.failed(action)
