"""How far the adoption of a step is, as values: what its guards have said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """What the guard of a task says of its worker to a new controller."""

    task: int
    ready: bool = False
    assigned: bool = False
    begun: bool = False  # its script was told to start
    store: tuple[str, int] | None = None  # rank 0
    lighthouse: str | None = None
    floor: int = 0
    step: int | None = None  # the last that it has committed


@dataclass(frozen=True)
class Adoption:
    """A step that an earlier controller has launched is being adopted."""

    since: float
    slurm_step: str | None = None  # what Slurm calls it, if the earlier one has written that down
    asked: bool = False
    again: float = 0.0  # not before
    joined: float | None = None  # when it is in the journal that it has committed its first step
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Fate:
    """What Slurm says of a node on which a step may have died while no controller was there (fate.py)."""

    node: str
    asked: float
    answered: bool = False
    down: bool = False  # or it does not respond
    since: float | None = None  # when it, or its slurmd, was last started
