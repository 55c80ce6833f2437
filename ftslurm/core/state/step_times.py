"""How long the steps of this run took: a small histogram of the last few hundred, and the longest of all."""

from __future__ import annotations

from dataclasses import replace
from math import log2

from ftslurm.protocol.value_class import Value

LEAST_S = 0.01  # shorter steps count as so long
PER_DOUBLING = 2  # classes between a duration and twice that
CLASSES = 60  # the last one begins at 4 months
RECENT = 512  # when so many are counted, all counts are halved: old ones fade away
COMMON = 0.99  # so many steps are no longer than `common_s`: evaluations and checkpoints are rarer


class StepTimes(Value):
    """The time from one committed step to the next, as the groups have reported it."""

    counts: tuple[int, ...] = (0,) * CLASSES  # of recent ones, by duration
    longest_s: float = 0.0
    seen: int = 0

    def plus(self, seconds: float) -> StepTimes:
        """Return the times with one more."""
        counts = list(self.counts)
        counts[_class(seconds)] += 1
        if sum(counts) >= RECENT:
            counts = [count // 2 for count in counts]
        return replace(
            self, counts=tuple(counts), longest_s=max(self.longest_s, seconds), seen=min(self.seen + 1, 10**9)
        )

    @property
    def common_s(self) -> float:
        """Return a time that 99 of 100 recent steps do not exceed, rounded up to the end of its class."""
        left = COMMON * sum(self.counts)
        for number, count in enumerate(self.counts):
            left -= count
            if count and left <= 0:
                end: float = LEAST_S * 2.0 ** ((number + 1) / PER_DOUBLING)
                return min(self.longest_s, end)
        return self.longest_s


def remembered(common_s: float, longest_s: float, seen: int) -> StepTimes:
    """Return the times that an earlier controller had learnt, as far as the journal has them."""
    counts = [0] * CLASSES
    counts[_class(common_s / 2 ** (1 / PER_DOUBLING))] = min(seen, RECENT // 4)  # `common_s` is the end of its class
    return StepTimes(tuple(counts), max(longest_s, common_s), seen)


def _class(seconds: float) -> int:
    if not seconds > LEAST_S:
        return 0
    return int(min(CLASSES - 1, PER_DOUBLING * log2(seconds / LEAST_S)))
