"""Everything the controller knows, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from immutables import Map

from ftslurm.core.state.actions import Announce, Evict
from ftslurm.core.state.model import (
    Allocation,
    Drills,
    Ending,
    JobPool,
    Lineage,
    Nodes,
    Phase,
    Standstill,
    Unit,
)
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.core.state.unit_table import UnitTable


@dataclass(frozen=True)
class RunState:
    """Everything the controller knows."""

    table: UnitTable
    allocation: Allocation | None = None  # the controller's own; without nodes where all are asked for (array mode)
    held: tuple[object, ...] = ()  # Ended of steps that Slurm had told to end, until it has said why (events.py)
    parked: tuple[tuple[str, int], ...] = ()  # groups that `ftslurm scale` has taken out: unit, last attempt
    lineage: Lineage = field(default=Lineage())
    job_pool: JobPool = field(default=JobPool())
    nodes: Nodes = field(default=Nodes())
    standstill: Standstill = field(default=Standstill())
    drills: Drills = field(default=Drills())
    lighthouse_url: str | None = None  # empty: there is none
    released: bool = False  # all have started: later groups do not wait for one another
    waited_for: int = 0  # until then: a group that the others wait for
    planned: int = 0  # see Past
    told: Map[str, Announce | Evict] = Map()  # unit -> the last order about it that was given to a Lighthouse
    warnings: frozenset[str] = frozenset()  # those the user has been told
    stepless: tuple[float, float] | None = None  # since when all scripts run without a step, and told after how long
    ending: Ending | None = None
    finished: bool = False
    judged: tuple[object, ...] = field(default=(), compare=False)  # what concerns() was at the decision before
    jobs_judged: tuple[object, ...] = field(
        default=(), compare=False
    )  # what job_concerns() was when rules saw all jobs
    jobs_due: float = field(default=0.0, compare=False)  # when rules look at all jobs again, if nothing changes

    @property
    def lighthouse(self) -> Unit:
        return self.table.by_name[LIGHTHOUSE]

    @property
    def groups(self) -> tuple[Unit, ...]:
        """All groups in order. It takes time in proportion to their number: rules that run often use the table."""
        return tuple(self.table.all_groups())

    @property
    def standbys(self) -> tuple[Unit, ...]:
        return self.table.others()[1:]

    @property
    def units(self) -> tuple[Unit, ...]:
        """The Lighthouse, the groups and the standbys; as for `groups`, it takes its time."""
        return tuple(self.table)

    def concerns(self) -> tuple[object, ...]:
        """What every unit's rules look at, beside the unit itself. How far the training is changes with every event,
        and is no part of it: only whether it has begun."""
        lineage, jobs, lighthouse = self.lineage, self.job_pool, self.lighthouse
        return (
            *(self.ending, self.allocation, self.lighthouse_url, self.released, self.nodes, self.table.groups),
            *(lineage.lost, lineage.resuming, lineage.restarted, lineage.saving, lineage.rolling, lineage.step > 0),
            *(jobs.by_name, jobs.asking, jobs.polled, lighthouse.phase, lighthouse.attempt),
        )

    def job_concerns(self) -> tuple[object, ...]:
        """What the rules about jobs look at, beside the time and what concerns every unit."""
        standbys = (part for unit in self.standbys for part in (unit.phase, unit.current.adoption))
        return self.table.phases, self.table.having, self.table.in_job, *standbys

    def jobs_concerned(self, now: float) -> bool:
        """Whether rules have to look at all jobs: something about them has changed, or one is due."""
        if now >= self.jobs_due or self.concerns_all or _differ(self.job_concerns(), self.jobs_judged):
            return True
        units = (self.table.by_name[name] for name in self.table.to_look_at() if name in self.table.by_name)
        return any(unit.phase is not Phase.RUNNING or unit.current.told is not None for unit in units)

    @property
    def concerns_all(self) -> bool:
        """Whether something has changed since the last decision that rules have to look at every unit for."""
        return _differ(self.concerns(), self.judged)

    def attended(self) -> list[Unit]:
        """The units that rules have to look at, in order: those that have changed or are due, or all."""
        return list(self.table) if self.concerns_all else self.table.named(self.table.to_look_at())

    def allocations(self, pool: int | None = None) -> tuple[Allocation, ...]:
        """Where steps may be started, those for groups of this pool if one is given; the own one first."""
        own = () if self.allocation is None else (self.allocation,)
        jobs = (job for job in self.job_pool.jobs if job.usable and pool in (None, job.pool))
        return own + tuple(Allocation(job.name, job.nodes, own=False) for job in jobs)


def _differ(now: tuple[object, ...], before: tuple[object, ...]) -> bool:
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))
