"""What goodput.py and recovery.py ask of a contender: a way to keep a training alive on Slurm.

A contender starts the training (benchmarks/training.py) on a scene's Slurm. The processes to kill, the steps, and the
calls to Slurm are found by the scene. Write one file a contender, and name it in ALL (benchmarks/contenders/all.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from contenders.scene import Scene


class Session(ABC):
    """A training that a contender has started."""

    @abstractmethod
    def ended(self) -> str | None:
        """Return None while it trains or recovers; when it has ended or given up, how, in one line."""

    @abstractmethod
    def end(self) -> None:
        """End it, whatever state it is in, within a minute. What is left dies with the scene's Slurm."""


class Contender(ABC):
    """A way to keep a training alive on Slurm."""

    name: ClassVar[str]  # of one word, for the command line and the tables: "ftslurm-cold"
    what: ClassVar[str]  # one line: what it is, whose, in which mode
    adaptations: ClassVar[tuple[str, ...]] = ()  # what differs here from how its authors publish it; printed

    def missing(self) -> str | None:
        """Return why it cannot run here, in one line, or None."""
        return None

    def versions(self) -> dict[str, str]:
        """Return package -> version of what it is made of; printed with the results."""
        return {}

    @abstractmethod
    def start(self, scene: Scene) -> Session:
        """Start the training; return at once. The caller waits, with a limit, for the first steps of all replicas."""
