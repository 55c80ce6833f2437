"""The state of a run as one immutable value."""

from __future__ import annotations

from dataclasses import field

from immutables import Map

from ftslurm.core.state.actions import Send
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
from ftslurm.protocol.value_class import Value


class RunState(Value):
    """Everything the controller knows."""

    table: UnitTable
    allocation: Allocation | None = None  # the controller's own; without nodes in array mode: jobs provide all
    held: tuple[object, ...] = ()  # Ended events whose verdict waits (rules._holds)
    parked: tuple[tuple[str, int], ...] = ()  # (unit, last attempt) of groups that `ftslurm scale` has removed
    lineage: Lineage = field(default=Lineage())
    job_pool: JobPool = field(default=JobPool())
    nodes: Nodes = field(default=Nodes())
    standstill: Standstill = field(default=Standstill())
    drills: Drills = field(default=Drills())
    lighthouse_url: str | None = None  # empty: there is none
    released: bool = False  # all groups have started: later ones do not wait for one another
    waited_for: int = 0  # until released: number of a group that the others wait for
    planned: int = 0  # see Past
    told: Map[str, Send] = Map()  # unit -> the last order about it sent to a Lighthouse
    warnings: frozenset[str] = frozenset()  # warnings that the user has been given
    stepless: tuple[float, float] | None = None  # since when scripts run without a step; seconds last reported
    ending: Ending | None = None
    finished: bool = False
    judged: tuple[object, ...] = field(default=(), compare=False)  # concerns() at the previous decision
    jobs_judged: tuple[object, ...] = field(default=(), compare=False)  # job_concerns() when rules last saw all jobs
    jobs_due: float = field(default=0.0, compare=False)  # when the rules look at all jobs again, if nothing changes

    @property
    def lighthouse(self) -> Unit:
        return self.table.by_name[LIGHTHOUSE]

    @property
    def groups(self) -> tuple[Unit, ...]:
        """All groups in order. Takes time in proportion to their number: rules that run often use the table."""
        return tuple(self.table.all_groups())

    @property
    def standbys(self) -> tuple[Unit, ...]:
        return self.table.others()[1:]

    @property
    def units(self) -> tuple[Unit, ...]:
        """The Lighthouse, the groups and the standbys. Takes time in proportion to their number, as `groups` does."""
        return tuple(self.table)

    def concerns(self) -> tuple[object, ...]:
        """Return what the rules of every unit depend on, beside the unit itself.

        The progress of the training changes with every event, so it is left out, except for whether it has begun.
        """
        lineage, jobs, lighthouse = self.lineage, self.job_pool, self.lighthouse
        return (
            *(self.ending, self.allocation, self.lighthouse_url, self.released, self.nodes, self.table.groups),
            *(lineage.lost, lineage.resuming, lineage.restarted, lineage.saving, lineage.rolling, lineage.step > 0),
            *(jobs.by_name, jobs.asking, jobs.polled, lighthouse.phase, lighthouse.attempt),
        )

    def job_concerns(self) -> tuple[object, ...]:
        """Return what the rules about jobs depend on, beside the time and `concerns`."""
        return self.table.phases, self.table.having, self.table.in_job, self.table.standbys_in

    def jobs_concerned(self, now: float) -> bool:
        """Return whether the rules must look at all jobs: something about them has changed, or one is due."""
        if now >= self.jobs_due or self.concerns_all or _differ(self.job_concerns(), self.jobs_judged):
            return True
        units = (self.table.by_name[name] for name in self.table.to_look_at() if name in self.table.by_name)
        return any(unit.phase is not Phase.RUNNING or unit.current.told is not None for unit in units)

    @property
    def concerns_all(self) -> bool:
        """Whether the rules must look at every unit: `concerns` has changed since the last decision."""
        return _differ(self.concerns(), self.judged)

    def attended(self) -> list[Unit]:
        """Return the units that the rules must look at, in order: those that have changed or are due, or all."""
        return list(self.table) if self.concerns_all else self.table.named(self.table.to_look_at())

    def allocations(self, pool: int | None = None) -> tuple[Allocation, ...]:
        """Return where steps may be started: the controller's own allocation, then jobs (only of `pool`, if given)."""
        own = () if self.allocation is None else (self.allocation,)
        jobs = (job for job in self.job_pool.jobs if job.usable and pool in (None, job.pool))
        return own + tuple(Allocation(job.name, job.nodes, own=False) for job in jobs)


def _differ(now: tuple[object, ...], before: tuple[object, ...]) -> bool:
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))
