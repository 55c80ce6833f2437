"""Which faults does the configuration ask for, and when? Pure: the same seed draws the same stream, everywhere."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

from ftslurm.config.schema import Config

GROUPLESS = frozenset({"lighthouse"})  # faults that strike no group


@dataclass(frozen=True)
class Planned:
    """A fault of faults.plan: due once its group has committed `step`. Of a GROUPLESS one the group says only when."""

    step: int
    kind: str
    group: int
    rank: int


@dataclass(frozen=True)
class Drill:
    """A random fault: due so many seconds after the run's first committed step."""

    after_s: float
    kind: str
    group: int
    rank: int


def planned(config: Config) -> tuple[Planned, ...]:
    """The faults of faults.plan, in its order; a fraction of job.total_steps has become a step."""
    return tuple(Planned(_step(f.at, config.job.total_steps or 0), f.kind, f.group, f.rank) for f in config.faults.plan)


def _step(at: float, total: int) -> int:
    return max(1, math.ceil(round(at if at >= 1 else at * total, 6)))  # 0.07 * 100 is a little more than 7


def stream(config: Config, index: int) -> Drill | None:
    """The index-th random fault, from 0; None: there is none (faults.mean_s is 0, or faults.count are used up).

    The times between two are exponentially distributed, so at any moment the next is faults.mean_s away on average
    (a Poisson process, as failures of many machines are); kind, group and rank are equally likely each. Asking for
    the faults in order costs the same each time, however many there were.
    """
    faults, size = config.faults, config.groups.nodes * config.groups.workers
    if faults.mean_s <= 0 or not faults.kinds or (faults.count and index >= faults.count):
        return None
    return _source(faults.seed, faults.mean_s, tuple(faults.kinds), config.groups.count, size).get(index)


@lru_cache(maxsize=8)
def _source(seed: int, mean_s: float, kinds: tuple[str, ...], groups: int, size: int) -> _Source:
    return _Source(seed, mean_s, kinds, groups, size)


class _Source:
    """The stream as far as it has been drawn: what is asked for again is not drawn again."""

    def __init__(self, seed: int, mean_s: float, kinds: tuple[str, ...], groups: int, size: int) -> None:
        self._draw = random.Random(seed).random  # noqa: S311  the one method whose numbers Python promises to keep
        self._mean_s = mean_s
        self._kinds = kinds
        self._groups = groups
        self._size = size
        self._drawn: list[Drill] = []

    def get(self, index: int) -> Drill:
        while len(self._drawn) <= index:
            before = self._drawn[-1].after_s if self._drawn else 0.0
            after = before - self._mean_s * math.log(1.0 - self._draw())
            kind = self._kinds[self._below(len(self._kinds))]
            # Drawn in this order for every kind, so that other kinds leave times, groups and ranks as they are.
            self._drawn.append(Drill(after, kind, self._below(self._groups), self._below(self._size)))
        return self._drawn[index]

    def _below(self, count: int) -> int:
        return int(self._draw() * count)
