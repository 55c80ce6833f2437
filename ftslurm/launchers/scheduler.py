"""What a scheduler is to the controller: whatever gives a run its nodes and starts its steps there.

Slurm is one (srun.py, slurm_requests.py), this machine alone is another (local.py). A scheduler decides nothing: the
core says what to start, ask and cancel; a scheduler says with which commands, and what their output means.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ftslurm.core.state.actions import Ask, Attach, Launch
from ftslurm.core.state.events import Event
from ftslurm.core.state.model import Allocation, Evidence
from ftslurm.core.state.run_state import RunState

PATIENCE_S = 120.0  # Slurm's commands time out by themselves long before
log = logging.getLogger("ftslurm.controller.loop")


@dataclass(frozen=True)
class Command:
    """One process of a step."""

    argv: list[str]
    env: Mapping[str, str]
    by_order: bool = False  # the process itself, not an srun: `leave` ends it by message, not by signal
    blocked: frozenset[signal.Signals] = frozenset()  # signals that never reach it


class CancelStep(Ask):
    """Cancel a step, as an administrator would."""

    name: str  # as a task has reported it (messages.Hello.slurm_step)


class AskOwnState(Ask):
    """Ask why the controller's own job ends. The answer is StopAsked if there is a reason, and always Explained."""

    patience_s: float = field(default=PATIENCE_S, compare=False)
    signalled: bool = False  # Slurm has signalled the job: the run ends with the answer, whatever it is


class AskOwnNodes(Ask):
    """Ask which nodes the controller's own job still has. The answer is NodesLeft."""


class SubmitSuccessor(Ask):
    """Submit another job for the controller (array mode), which asks this one to hand over."""


A = TypeVar("A", bound=Ask)
S = TypeVar("S", bound="Scheduler")


class Answer(NamedTuple):
    code: int  # negative: the signal that has ended the command
    text: str  # its stdout and stderr


class Request(Generic[S, A]):
    """One thing that is asked of a scheduler: the command that asks it, and the events that its answer means.

    It runs in the background (background.py). Two with the same key never run at the same time.
    """

    timeout_s = PATIENCE_S

    def __init__(self, scheduler: S, action: A, now: float) -> None:
        self.scheduler, self.action, self.asked = scheduler, action, now
        self.began = time.monotonic()

    @property
    def key(self) -> Hashable:
        return self.action

    def argv(self) -> list[str]:
        raise NotImplementedError

    def env(self) -> Mapping[str, str] | None:
        """Return the environment of the command; None: that of this process."""
        return None

    def read(self, answer: Answer) -> Sequence[Event]:
        """Return what an answer means."""
        if answer.code:
            log.warning("%s has failed (exit code %d): %s", self.action, answer.code, answer.text.strip()[-1000:])
        return []


class Scheduler(Protocol):
    """See the head of this file. `state` is set before each decision's actions are carried out."""

    direct: bool  # a step has a process of this machine for each task; else one process, which stands for all of them
    job: str | None  # the controller's own job; None: it runs in none
    state: RunState | None

    def allocation(self) -> Allocation:
        """Return the nodes of the controller's own job."""

    def leaves(self) -> Mapping[str, str]:
        """Return the leaf switch or block of each node, as far as it is known."""

    def start(self, launch: Launch, log_dir: Path) -> list[Command]:
        """Return the processes of a step. Their standard input and output carry its messages."""

    def attach(self, attach: Attach) -> Command:
        """Return a process that connects to a step of an earlier controller (ftslurm.guard.attach)."""

    def printed(self, line: str) -> Iterable[Evidence | Event | Ask]:
        """Return what a line of a step's stderr means: how it fails, why the run must end, what to ask about it."""

    def request(self, ask: Ask, now: float) -> Request[Any, Any]:
        """Return the request by which something is asked; the answers are the events that the actions name."""

    def reported(self, command: Mapping[str, Any], now: float) -> Sequence[Event]:
        """Return what a process of ftslurm in one of the run's jobs tells of the job (`pilot`, `leaving`)."""

    def end(self, jobs: Sequence[str]) -> None:
        """Cancel what is left of the run's jobs at its end. May wait for it."""
