"""The state of a run as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import inf

from immutables import Map

from ftslurm.core.state.actions import Errand, Send
from ftslurm.core.state.events import Ended
from ftslurm.core.state.model import (
    ALL,
    Allocation,
    Comparisons,
    Ending,
    JobPool,
    Lineage,
    Nodes,
    Reached,
    Standstill,
    Unit,
)
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.protocol.value_class import Value


class RunState(Value):
    """Everything the controller knows."""

    table: UnitTable
    allocation: Allocation = Allocation("", ())  # the controller's own; without nodes in array mode: jobs provide all
    held: tuple[Ended, ...] = ()  # ended steps whose verdict waits (rules._holds)
    doubted: float = 0.0  # Slurm is asked until then whether the controller's own job ends
    parked: Map[str, int] = Map()  # the last attempts of groups that `ftslurm scale` has removed
    lineage: Lineage = field(default=Lineage())
    job_pool: JobPool = field(default=JobPool())
    nodes: Nodes = field(default=Nodes())
    standstill: Standstill = field(default=Standstill())
    reached: Reached = field(default=Reached())
    paced: bool = False  # a group has reported how fast it is since all were compared (slow.py)
    compared: float = -inf  # when they were
    injected: frozenset[int] = frozenset()  # indices of the planned drills that are done
    comparisons: Comparisons = field(default=Comparisons())
    lighthouse_url: str | None = None  # empty: there is none
    released: bool = False  # all groups have started: later ones do not wait for one another
    restarts: int = 0  # of groups that had failed
    retries: int = 0  # Slurm refuses launches: how often it was tried; 0: it has refused none since a step has begun
    retried: float = -inf  # when one that it had refused was last tried again
    told: Map[str, Send] = Map()  # unit -> the last order about it sent to a Lighthouse
    data: frozenset[str] = frozenset()  # from which groups take their batches (messages.Reads)
    warnings: frozenset[str] = frozenset()  # warnings that the user has been given
    stepless: tuple[float, float] | None = None  # since when scripts run without a step; seconds last reported
    home: str = ""  # where this controller runs, and all beside it: its Slurm job, with its requeues, or its machine
    former: str = ""  # the job in which the controller before ran
    began: float = 0.0  # when this controller began
    left: bool = False  # it has handed over, and its Lighthouse ends
    follows: bool = False  # the controller before has: its Lighthouse serves until the next one is up
    commands: tuple[str, ...] = ()  # the ids of the last commands that were taken from the inbox
    errands: Map[Errand, float] = Map()  # those that are not known to be done -> when they are repeated
    hands_over: str | None = None  # why another candidate is to lead from now on
    ending: Ending | None = None
    finished: bool = False
    due: Mapping[str, float] = field(default_factory=lambda: {ALL: -inf}, compare=False)  # when rules look again

    @property
    def wakes(self) -> float:
        """When `decide` must be called again even without an event; infinite: not before an event."""
        return min(self.due.values(), default=inf)

    @property
    def lighthouse(self) -> Unit:
        return self.table.by_name[LIGHTHOUSE]

    @property
    def groups(self) -> tuple[Unit, ...]:
        """All groups in order. Takes time in proportion to their number: rules that run often use the table."""
        return tuple(self.table.all_groups())

    @property
    def standbys(self) -> tuple[Unit, ...]:
        return tuple(self.table.all_standbys())

    @property
    def units(self) -> tuple[Unit, ...]:
        """The Lighthouse, the groups and the standbys. Takes time in proportion to their number, as `groups` does."""
        return tuple(self.table)

    def allocations(self, pool: int | None = None) -> tuple[Allocation, ...]:
        """Return where steps may be started: the controller's own allocation, then jobs (only of `pool`, if given)."""
        jobs = (job for job in self.job_pool.jobs if job.usable and pool in (None, job.pool))
        return (self.allocation, *(Allocation(job.name, job.nodes, own=False) for job in jobs))
