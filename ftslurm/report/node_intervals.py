"""The times during which the run held a node, and during which a warm standby was on it."""

from __future__ import annotations

from collections import Counter, defaultdict

from ftslurm.protocol import records
from ftslurm.report.history import NodeHistory
from ftslurm.run.journal_lines import Fold

Interval = tuple[float, float]


class NodeIntervals(Fold):
    """Collects the intervals of all nodes from the journal's lines on Slurm jobs, nodes and standbys."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[float, tuple[str, ...], bool]] = {}  # since, nodes, whether it is the controller's
        self._standbys: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._held = defaultdict[str, list[Interval]](list)
        self._warm = defaultdict[str, list[Interval]](list)
        self._excluded = Counter[str]()

    def allocation_granted(self, record: records.AllocationGranted) -> None:
        if self._jobs.get(record.allocation, (0.0, (), False))[1] != record.nodes:
            self._end(record.allocation, self.now)
            self._jobs[record.allocation] = self.now, record.nodes, record.pool is None

    def allocation_lost(self, record: records.AllocationLost) -> None:
        self._end(record.allocation, self.now)

    def node_excluded(self, record: records.NodeExcluded | records.NodeCheckFailed) -> None:
        self._excluded[record.node] += 1

    node_check_failed = node_excluded

    def end_jobs(self, time: float, own: bool = False) -> None:
        """End all jobs, or only the controller's `own`, and all standbys."""
        for name in [name for name, (_, _, controllers) in self._jobs.items() if controllers or not own]:
            self._end(name, time)
        for unit in list(self._standbys):
            self.standby(unit, time)

    def standby(self, unit: str, time: float, nodes: tuple[str, ...] = ()) -> None:
        """Begin a standby on these nodes; none: it has ended, or has become a group's attempt."""
        since, there = self._standbys.pop(unit, (time, ()))
        for node in there:
            self._warm[node].append((since, time))
        if nodes:
            self._standbys[unit] = time, nodes

    def histories(self, end: float) -> tuple[NodeHistory, ...]:
        """Return the history of each node up to `end`."""
        self.end_jobs(end)
        names = sorted({*self._held, *self._warm, *self._excluded})
        return tuple(
            NodeHistory(name, merged(self._held[name]), merged(self._warm[name]), self._excluded[name])
            for name in names
        )

    def _end(self, job: str, time: float) -> None:
        since, nodes, _ = self._jobs.pop(job, (time, (), False))
        for node in nodes:
            self._held[node].append((since, time))


def merged(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Return the same times as intervals that neither overlap nor touch, in order."""
    out: list[Interval] = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        elif end > begin:
            out.append((begin, end))
    return tuple(out)


def length(intervals: tuple[Interval, ...]) -> float:
    """Return the seconds of merged intervals."""
    return sum(end - begin for begin, end in intervals)
