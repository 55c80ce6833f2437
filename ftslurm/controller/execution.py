"""Carries out the core's actions: starts, orders, cancels and adopts steps, and sends requests to the scheduler.

Only journal records and `Finish` are not handled here: the loop writes records into the journal and ends at `Finish`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import assert_never

from ftslurm.config.schema import Config
from ftslurm.core.jobs.supply import over
from ftslurm.core.state import actions as act
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Ended, ErrandDone, Event, Heard, NodesNoted, TaskFailed
from ftslurm.core.state.model import Evidence, StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.errors import Distrusted
from ftslurm.launchers.assignment import assignment
from ftslurm.launchers.scheduler import Answer, AskOwnNodes, Request
from ftslurm.launchers.step_processes import Children
from ftslurm.protocol import messages
from ftslurm.protocol.records import JournalRecord
from ftslurm.run import exclude_file, stored_checkpoints
from ftslurm.run.directory import RunDir
from ftslurm.security import sharing

END_WAIT_S = 30.0  # longest wait for a running submission when the run is over
log = logging.getLogger("ftslurm.controller.loop")


class Executor:
    """Carries out actions, with the run's scheduler and the processes of its steps."""

    def __init__(self, config: Config, run: RunDir, children: Children) -> None:
        self.config, self.run, self.children = config, run, children
        self.scheduler = children.scheduler
        self._failed = set[act.Errand]()

    def carry_out(self, action: Action) -> Sequence[Event]:
        """Carry out an action. Return the events that are known at once."""
        match action:
            case act.Send(step, message):
                self.children.send(step, messages.encode(message))
            case act.Launch():
                return self._launch(action)
            case act.Attach():
                return self._attach(action)
            case act.Kill(step, stuck):
                self.children.kill(step, signal.SIGTERM, stuck=stuck)
            case act.Cancel(step):
                if not self.children.cancel(step):
                    return [Heard(step, messages.Injected("cancel", "Slurm has not named the step"))]
            case act.Assign(step):
                self.children.send(step, assignment(self.config, self.run, action))
            case act.NoteBroken():
                return self._note(action)
            case act.DistrustCheckpoints():
                return self.children.background.ask(self._distrust(action))
            case act.Probe():  # while slurmctld is away a probe that does not come back proves nothing
                return [*self.ask(action), *self.ask(AskOwnNodes())]
            case act.AskNodes():
                return [*self.ask(action), *self.read_notes()]
            case act.Ask():
                return self.ask(action)
            case act.Finish() | JournalRecord():
                pass
            case _:
                assert_never(action)
        return []

    def ask(self, ask: act.Ask) -> Sequence[Event]:
        """Ask the scheduler in the background. Return the events that are known at once."""
        if isinstance(ask, AskOwnNodes) and not self.config.one_job:
            return []  # no group runs in the controller's job
        return self.children.background.ask(self.scheduler.request(ask))

    def read_notes(self) -> list[Event]:
        """Return what other runs have found broken (cluster.exclude_file)."""
        if self.config.cluster.exclude_file is None:
            return []
        nodes, said = exclude_file.read(self.config, self.run)
        return [NodesNoted(frozenset(nodes), said)]

    def _note(self, errand: act.NoteBroken) -> list[Event]:
        """Tell other runs of a node."""
        try:
            exclude_file.write(self.config, self.run, errand.node, errand.reason)
        except (OSError, Distrusted) as error:
            return self._not_done(errand, str(error))
        return [ErrandDone(errand)]

    def _distrust(self, errand: act.DistrustCheckpoints) -> Request:
        """Return the request to mark checkpoints. It is the same for every scheduler."""
        argv, env = stored_checkpoints.distrust(self.config, self.run, errand.group, errand.attempt, errand.after)

        def read(answer: Answer) -> list[Event]:
            return self._not_done(errand, answer.text) if answer.code else [ErrandDone(errand)]

        return Request(errand, argv, read, env, stored_checkpoints.ANSWER_S)

    def _not_done(self, errand: act.Errand, why: str) -> list[Event]:
        """Log once that an errand has failed. The core repeats it."""
        if errand not in self._failed:
            self._failed.add(errand)
            log.warning("%s has failed and is tried again: %s", errand, why.strip()[-1000:])
        return []

    def end(self, state: RunState) -> None:
        """Cancel the run's remaining jobs when the run is over, also those that are just being submitted."""
        self.children.background.wait(act.RequestJobs, END_WAIT_S)
        self.scheduler.state = state
        self.scheduler.end(over(state))

    def _launch(self, action: act.Launch) -> list[Event]:
        log_dir = self.run.logs
        if action.id.unit != LIGHTHOUSE:
            log_dir = self.run.attempt(action.id.unit, action.id.attempt)
            with contextlib.suppress(OSError):  # the worker reports it, with the path
                sharing.make_folder(log_dir)
        processes = self.scheduler.start(action, log_dir)
        problem = self.children.launch(action.id, processes, self._step_log(action.id))
        return [] if problem is None else self._not_launched(action.id, problem)

    def failed(self, action: Action) -> list[Event]:
        """Return the events for an action that failed by a bug of ftslurm, so that the core does not wait for it."""
        error = "ftslurm could not start the step; this is a bug, see controller.log"
        return self._not_launched(action.id, error) if isinstance(action, act.Launch) else []

    def _not_launched(self, step: StepId, error: str) -> list[Event]:
        failed = TaskFailed(step, Evidence(error=error, started=False))
        started = step in self.children.steps and self.children.steps[step].children
        return [failed] if started else [failed, Ended(step, code=None, error=error)]

    def _attach(self, action: act.Attach) -> list[Event]:
        """Adopt a step of an earlier controller."""
        command, log = self.scheduler.attach(action), self._step_log(action.id)
        problem = self.children.adopt(action.id, command, log, action.slurm_step)
        return [] if problem is None else [Ended(action.id, code=None, error=problem)]

    def _step_log(self, step: StepId) -> Path:
        return self.run.step_log(step.unit, step.attempt)
