"""Carries out the core's actions: starts, orders, cancels and adopts Slurm steps, and sends requests to Slurm.

Only journal records and `Finish` are not handled here: the loop writes records into the journal and ends at `Finish`.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import assert_never

from ftslurm.config.schema import Config
from ftslurm.controller.slurm_requests import SlurmRequests, srun_names
from ftslurm.core.state import actions as act
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Ended, Event, Heard, NodesChecked, TaskFailed
from ftslurm.core.state.model import Evidence, StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.guard.node_check import PREFLIGHT_S
from ftslurm.launchers.assignment import assignment
from ftslurm.launchers.local import LocalLauncher
from ftslurm.launchers.srun import SrunLauncher
from ftslurm.launchers.step_processes import Children
from ftslurm.protocol import messages
from ftslurm.protocol.records import JournalRecord
from ftslurm.run.directory import RunDir
from ftslurm.security import sharing
from ftslurm.slurm import commands
from ftslurm.slurm.questions import CancelStep, ProbeNode, RunNodeChecks

PROBE_S = 60.0  # srun itself gives up after 10 to 20 s if a node does not answer
CHECK_MORE_S = 60.0  # for srun, beside PREFLIGHT_S, which is kept on the node


class Executor:
    """Carries out actions, with the run's launcher, its steps and Slurm."""

    def __init__(self, config: Config, run: RunDir, children: Children, slurm: SlurmRequests, job: str) -> None:
        self.config, self.run, self.children, self.slurm, self.job = config, run, children, slurm, job
        self.local = config.cluster.kind == "local"
        self.launcher: LocalLauncher | SrunLauncher = (LocalLauncher if self.local else SrunLauncher)(config, run)

    def update(self, state: RunState) -> None:
        """Take over what command lines depend on: the jobs' ids and the Lighthouse's address."""
        self.launcher.url = state.lighthouse_url  # a new Lighthouse takes the port of its predecessor
        if isinstance(self.launcher, SrunLauncher):
            self.launcher.jobs = srun_names(state)

    def carry_out(self, action: Action, now: float) -> Sequence[Event]:
        """Carry out an action. Return the events that are known at once."""
        if isinstance(action, act.Send):
            self.children.send(action.id, messages.encode(action.message))
            return []
        if isinstance(action, act.JobAction):
            return self.slurm.carry_out(action, now)
        match action:
            case act.Launch():
                return self._launch(action)
            case act.Attach():
                return self._attach(action)
            case act.Kill(step, stuck):
                self.children.kill(step, signal.SIGTERM, stuck=stuck)
            case act.Cancel(step):
                return self._cancel(step)
            case act.Probe(node, allocation):
                self._probe(node, allocation)
            case act.CheckNodes(nodes, allocation):
                return self._check_nodes(nodes, allocation, now)
            case act.Assign(step):
                self.children.send(step, assignment(self.config, self.run, self.launcher, action))
            case act.Finish() | JournalRecord():
                pass
            case _:
                assert_never(action)
        return []

    def ask_own_nodes(self) -> None:
        """Ask Slurm which nodes the controller's job still has, if the groups run in this job."""
        if self.job.isdigit() and self.config.cluster.kind == "slurm":
            self.slurm.ask_own_nodes(self.job)

    def _probe(self, node: str, allocation: str | None) -> None:
        command = self.launcher.probe(node, allocation)
        self.slurm.background.ask(ProbeNode(node), command.argv, env=command.env, timeout_s=PROBE_S)
        self.ask_own_nodes()  # while slurmctld is away a probe that does not come back proves nothing

    def _check_nodes(self, nodes: tuple[str, ...], allocation: str | None, now: float) -> list[Event]:
        command, question = self.launcher.check_nodes(nodes, allocation, now), RunNodeChecks(nodes)
        timeout_s = PREFLIGHT_S + CHECK_MORE_S
        self.slurm.background.ask(question, command.argv, env=command.env, timeout_s=timeout_s, ends_with_us=True)
        if self.slurm.background.asking(question):
            return []
        return [NodesChecked(nodes, (), f"{command.argv[0]} cannot be started")]

    def _cancel(self, step: StepId) -> list[Event]:
        """Cancel a step with scancel, as an administrator would do it (a drill)."""
        slurm_id = self.children.steps[step].slurm_id if step in self.children.steps else None
        if slurm_id is None:
            error = "scancel needs a Slurm step" if self.local else "Slurm has not named the step"
            return [Heard(step, messages.Injected("cancel", error))]
        self.slurm.background.ask(CancelStep(slurm_id), commands.cancel(slurm_id))
        return []

    def _launch(self, action: act.Launch) -> list[Event]:
        log_dir = self.run.logs
        if action.id.unit != LIGHTHOUSE:
            log_dir = self.run.attempt(action.id.unit, action.id.attempt)
            with contextlib.suppress(OSError):  # the worker reports it, with the path
                sharing.make_folder(log_dir)
        processes = self.launcher.commands(action, log_dir)
        problem = self.children.launch(action.id, processes, str(Path.cwd()), self._step_log(action.id))
        return [] if problem is None else self._not_launched(action.id, problem)

    def failed(self, action: Action) -> list[Event]:
        """Return the events for an action that failed by a bug of ftslurm, so that the core does not wait for it."""
        error = "ftslurm could not start the step; this is a bug, see controller.log"
        if isinstance(action, act.CheckNodes):
            return [NodesChecked(action.nodes, (), error)]
        return self._not_launched(action.id, error) if isinstance(action, act.Launch) else []

    def _not_launched(self, step: StepId, error: str) -> list[Event]:
        failed = TaskFailed(step, Evidence(None, None, error=error, started=False))
        started = step in self.children.steps and self.children.steps[step].children
        return [failed] if started else [failed, Ended(step, code=None, error=error)]

    def _attach(self, action: act.Attach) -> list[Event]:
        """Adopt a step of an earlier controller. Only steps on Slurm outlive their controller."""
        assert isinstance(self.launcher, SrunLauncher)
        command = self.launcher.attach(action.id, action.place, known=action.slurm_step is not None)
        log = self._step_log(action.id)
        problem = self.children.adopt(action.id, command, str(Path.cwd()), log, action.slurm_step)
        return [] if problem is None else [Ended(action.id, code=None, error=problem)]

    def _step_log(self, step: StepId) -> Path:
        return self.run.step_log(step.unit, step.attempt)
