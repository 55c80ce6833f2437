"""What a scheduler is to the controller: whatever gives a run its nodes and starts its steps there.

Slurm is one (srun.py, slurm_requests.py), this machine alone is another (local.py). A scheduler decides nothing: the
core says what to start, ask and cancel; a scheduler says with which commands, and what their output means.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.core.state.actions import Ask, Attach, Launch
from ftslurm.core.state.events import Event
from ftslurm.core.state.model import Allocation, Evidence
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol.value_class import Value
from ftslurm.slurm.evidence import no_job

ANSWER_S = 5.0  # time limit for an answer about the controller's own job, whose end does not wait
PATIENCE_S = 120.0  # Slurm's commands time out by themselves long before
log = logging.getLogger("ftslurm.controller.loop")


class Command(Value):
    """One process of a step."""

    argv: list[str]
    env: Mapping[str, str]
    by_order: bool = False  # the process itself, not an srun: `leave` ends it by message, not by signal
    blocked: frozenset[signal.Signals] = frozenset()  # signals that never reach it
    rpcs: int = 0  # to the scheduler, as of a Request


class CancelStep(Ask):
    """Cancel a step, as an administrator would."""

    name: str  # as a task has reported it (messages.Hello.slurm_step)


class AskOwnState(Ask):
    """Ask why the controller's own job ends. The answer is StopAsked if there is a reason, and always Explained."""

    signalled: bool = False  # Slurm has signalled the job: the run ends with the answer, whatever it is


class AskOwnNodes(Ask):
    """Ask which nodes the controller's own job still has. The answer is NodesLeft."""


class Answer(NamedTuple):
    code: int  # negative: the signal that has ended the command
    text: str  # its stdout and stderr
    took_s: float = 0.0


class Request(Value):
    """One thing that is asked of a scheduler: the command that asks it, and how its answer is read.

    It runs in the background (background.py). Two with the same action never run at the same time.
    """

    action: Ask
    argv: list[str]
    reader: Callable[[Answer], Sequence[Event]] | None = None  # None: something is done, which means no event
    env: Mapping[str, str] | None = None  # of the command; None: that of this process
    timeout_s: float = PATIENCE_S
    rpcs: int = 0  # how many the command makes to the scheduler, as counted with sdiag

    def read(self, answer: Answer) -> Sequence[Event]:
        """Return what an answer means."""
        if self.reader is not None:
            return self.reader(answer)
        if answer.code and not no_job(answer.text):  # with the job, what was to be done has gone
            log.warning("%s has failed (exit code %d): %s", self.action, answer.code, answer.text.strip()[-1000:])
        return []


class Scheduler:
    """See the head of this file. `state` is set before each decision's actions are carried out."""

    direct = False  # a step has a process of this machine for each task; else one process, which stands for all of them
    job: str | None = None  # the controller's own job, of which loop.py reads SLURM_*, too; None: it runs in none
    state: RunState | None = None

    def allocation(self) -> Allocation:
        """Return the nodes of the controller's own job; none if each group has a job. Nothing starts without a name."""
        raise NotImplementedError

    def leaves(self) -> Mapping[str, str]:
        """Return the leaf switch or block of each node, as far as it is known."""
        return {}

    def start(self, launch: Launch, log_dir: Path) -> list[Command]:
        """Return the processes of a step. Their standard input and output carry its messages.

        One that is not `direct` ends its tasks on SIGTERM, and has the exit code SRUN_FAILED if it could start none.
        """
        raise NotImplementedError

    def attach(self, attach: Attach) -> Command:
        """Return a process that connects to a step of an earlier controller (ftslurm.guard.attach)."""
        raise NotImplementedError(f"{attach.id} has ended with its controller")

    def printed(self, line: str) -> Iterable[Evidence | Event | Ask]:  # noqa: ARG002
        """Return what a line of a step's stderr means: how it fails, why the run must end, what to ask about it."""
        return []

    def request(self, ask: Ask) -> Request:
        """Return the request by which something is asked; the answers are the events that the actions name."""
        raise NotImplementedError

    def reported(self, command: Mapping[str, Any]) -> Sequence[Event]:  # noqa: ARG002
        """Return what a pilot tells of its job (`leaving`)."""
        return []

    def end(self, jobs: Sequence[str]) -> None:
        """Cancel what is left of the run's jobs at its end. May wait for it."""
