"""What a training under faults has achieved, computed from the lines that its processes have written. Pure.

A step counts as committed when the first process reports it. Its number and lineage say whether work is lost: a job
that resumes from a checkpoint draws a new lineage and commits numbers again, and what was committed above its first
number is undone. The measures compare a window with faults to a quiet window of the same training before it:

- step efficiency, as in torchft's publication of 5,145 of 6,249 steps: committed steps, whether undone later or not, by
  the steps that the window holds at the pace of the quiet window;
- participation: the mean share of the groups that took part in a committed step;
- goodput: the samples in committed steps that were not undone, by those of as many seconds of the quiet window.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Commit:
    """One process reports one committed step."""

    time: float
    replica: int
    pid: int
    step: int
    lineage: int  # drawn when weights are made or loaded from a checkpoint; copied with the weights
    participants: int
    samples: int


@dataclass(frozen=True)
class Kill:
    """One SIGKILL of the training process of a replica."""

    time: float
    replica: int
    pid: int


@dataclass(frozen=True)
class Step:
    """One committed step of the whole training, and what it stands on."""

    time: float
    participants: int
    samples: int
    total_steps: int  # committed and not undone, with this one
    total_samples: int  # of those steps


@dataclass(frozen=True)
class Window:
    """A span of time."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    def of(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps committed in it."""
        return [step for step in steps if self.begin < step.time <= self.end]


@dataclass(frozen=True)
class Measures:
    """What one window with faults has achieved."""

    seconds: float
    quiet_steps_per_s: float
    committed_steps: int
    undone_steps: int
    step_efficiency: float
    participation: float | None  # None: no step was committed
    goodput: float
    longest_pause_s: float
    kills: int
    recoveries_s: tuple[float, ...]  # from a kill to the first step that a new process of that replica commits
    not_back: int  # kills after which no new process committed before the window's end


def steps_of(commits: Iterable[Commit]) -> list[Step]:
    """Return the steps of the whole training in the order of their first report."""
    first: dict[tuple[int, int], Commit] = {}
    most: dict[tuple[int, int], int] = {}
    for commit in commits:
        key = commit.lineage, commit.step
        most[key] = max(most.get(key, 0), commit.participants)
        if key not in first or commit.time < first[key].time:
            first[key] = commit
    steps: list[Step] = []
    chains: dict[int, list[tuple[int, int]]] = {}  # lineage -> (step, samples up to it) of the work it stands on
    latest: list[tuple[int, int]] = []
    for key, commit in sorted(first.items(), key=lambda item: item[1].time):
        if commit.lineage not in chains:  # it continues the latest work, from below its first step
            chains[commit.lineage] = [entry for entry in latest if entry[0] < commit.step]
        latest = chains[commit.lineage]
        samples = commit.samples // commit.participants * most[key]
        total = samples + (latest[-1][1] if latest else 0)
        latest.append((commit.step, total))
        steps.append(Step(commit.time, most[key], samples, len(latest), total))
    return steps


def measure(commits: Iterable[Commit], kills: Sequence[Kill], groups: int, quiet: Window, faults: Window) -> Measures:
    """Compute the measures of the window with faults.

    Raises:
        ValueError: there are fewer than two steps in the quiet window, to which all is compared.
    """
    commits = list(commits)
    steps = steps_of(commits)
    calm = quiet.of(steps)
    if len(calm) < 2:
        raise ValueError(f"{len(calm)} steps in the quiet window of {quiet.seconds:.0f} s: nothing to compare with")
    took = calm[-1].time - calm[0].time
    step_rate = (len(calm) - 1) / took
    sample_rate = sum(step.samples for step in calm[1:]) / took
    inside = faults.of(steps)
    before = [step for step in steps if step.time <= faults.begin]
    gained_steps, gained_samples = _gain(before, inside)
    back = [_recovery(kill, commits, faults.end) for kill in kills]
    return Measures(
        seconds=faults.seconds,
        quiet_steps_per_s=step_rate,
        committed_steps=len(inside),
        undone_steps=len(inside) - gained_steps,
        step_efficiency=len(inside) / (step_rate * faults.seconds),
        participation=statistics.mean(step.participants for step in inside) / groups if inside else None,
        goodput=gained_samples / (sample_rate * faults.seconds),
        longest_pause_s=_longest_pause([step.time for step in inside], before[-1].time if before else None, faults),
        kills=len(kills),
        recoveries_s=tuple(seconds for seconds in back if seconds is not None),
        not_back=back.count(None),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def _gain(before: Sequence[Step], inside: Sequence[Step]) -> tuple[int, int]:
    """Return by how many steps and samples the work that is not undone has grown; negative if more was undone."""
    if not inside:
        return 0, 0
    then = (before[-1].total_steps, before[-1].total_samples) if before else (0, 0)
    return inside[-1].total_steps - then[0], inside[-1].total_samples - then[1]


def _longest_pause(times: list[float], last_before: float | None, faults: Window) -> float:
    edges = [faults.begin if last_before is None else last_before, *times, faults.end]
    return max(after - before for before, after in itertools.pairwise(edges))


def _recovery(kill: Kill, commits: Iterable[Commit], until: float) -> float | None:
    times = [c.time for c in commits if c.replica == kill.replica and c.pid != kill.pid and kill.time < c.time <= until]
    return min(times) - kill.time if times else None
