"""All units of a run as one immutable value with indexes.

A run may have 1,000 replica groups, so a decision must not look at every group because one of them has changed. `put`
returns a table with one unit changed, in O(log n). The indexes hold what the rules need: which groups are in a phase,
which units are on a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from enum import Enum
from typing import TypeVar

from immutables import Map

from ftslurm.core.state.model import LIVE, Phase, StepId, Unit
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit
from ftslurm.core.state.values import replace
from ftslurm.protocol.value_class import Value

Names = Map[str, None]  # a set of units' names
NOBODY: Names = Map()
K = TypeVar("K")


class Trait(Enum):
    """A property of a group, beside its phase, by which the rules select groups."""

    JOINED = "it has committed a step and runs"
    ADOPTING = "an earlier controller has launched it, and this one has yet to hear from it"
    WAITING = "it is due and has no place"
    HAS_FAILED = "an attempt of it has ended"
    RETIRED = "`ftslurm scale` takes it out of the run"
    TOLD = "Slurm has told its step to end"


def traits(unit: Unit) -> tuple[bool, ...]:
    """Return whether a unit has each of the traits, in the order of Trait."""
    current, waits = unit.current, unit.waits_for is not None
    return unit.joined, current.adoption is not None, waits, bool(unit.exits), unit.retired, current.told is not None


class UnitTable(Value):
    """The Lighthouse, the groups and the standbys. Two tables with the same units are equal."""

    by_name: Map[str, Unit] = Map()
    groups: int = 0  # the groups have the numbers 0 to groups - 1
    standbys: tuple[str, ...] = ()
    phases: Map[Phase, Names] = field(default=Map(), compare=False)  # of groups only
    having: Map[Trait, Names] = field(default=Map(), compare=False)  # of groups only
    standbys_in: Map[tuple[Phase, bool], Names] = field(default=Map(), compare=False)  # by phase; being adopted or not
    on_node: Map[str, Names] = field(default=Map(), compare=False)  # all units, by the nodes of their last place
    in_job: Map[str, Names] = field(default=Map(), compare=False)  # all units, by the job of their last place
    taken_over: Map[StepId, str] = field(default=Map(), compare=False)  # a standby's step -> the group that took it

    @staticmethod
    def of(units: Iterable[Unit]) -> UnitTable:
        """Return the table of these units: the Lighthouse, groups from 0 on without a gap, standbys."""
        table = UnitTable()
        for unit in units:
            table = table.put(unit)
        return table

    # --- reading -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Unit]:
        """Iterate over all units: the Lighthouse, the groups in order, the standbys."""
        yield self.by_name[LIGHTHOUSE]
        yield from self.all_groups()
        yield from (self.by_name[name] for name in self.standbys)

    def group(self, number: int) -> Unit:
        return self.by_name[group_unit(number)]

    def all_groups(self) -> Iterator[Unit]:
        return (self.by_name[group_unit(number)] for number in range(self.groups))

    def living(self, step: StepId) -> Unit | None:
        """Return the unit whose live step this is; None: the step is over."""
        name = self.taken_over.get(step, step.unit) if self.taken_over else step.unit
        unit = self.by_name.get(name)
        if unit is None or unit.phase not in LIVE:
            return None
        own = unit.current.ran_as is None and unit.attempt == step.attempt  # compared without making a StepId
        return unit if own or unit.id == step else None

    def count(self, *phases: Phase) -> int:
        """Return the number of groups in one of these phases."""
        return sum(len(self.phases.get(phase, NOBODY)) for phase in phases)

    def having_trait(self, trait: Trait) -> Names:
        return self.having.get(trait, NOBODY)

    def in_phase(self, *phases: Phase) -> list[Unit]:
        """Return the groups in one of these phases, in order."""
        if self.count(*phases) * 4 > self.groups:
            return [unit for unit in self.all_groups() if unit.phase in phases]
        return self.named(name for phase in phases for name in self.phases.get(phase, NOBODY))

    def others(self) -> tuple[Unit, ...]:
        """Return the Lighthouse and the standbys."""
        return (self.by_name[LIGHTHOUSE], *(self.by_name[name] for name in self.standbys))

    def stopping(self) -> tuple[Unit, ...]:
        """Return the Lighthouse, whatever its phase, and the standbys and groups that are brought down."""
        standbys = (name for adopting in (False, True) for name in self.standbys_in.get((Phase.STOPPING, adopting), ()))
        return (self.by_name[LIGHTHOUSE], *self.named(standbys), *self.in_phase(Phase.STOPPING))

    def waiting_standbys(self) -> list[Unit]:
        """Return the standbys that have no step, in order."""
        return self.named(self.standbys_in.get((Phase.PENDING, False), NOBODY))

    def named(self, names: Iterable[str]) -> list[Unit]:
        """Return the units of these names, in order, without those that are no longer in the table."""
        units = (self.by_name.get(name) for name in names)
        return sorted((unit for unit in units if unit is not None), key=_place_in_order)

    def near(self, node: str) -> list[Unit]:
        """Return the units whose last place has this node, in order."""
        return self.named(self.on_node.get(node, NOBODY))

    def of_job(self, job: str) -> list[Unit]:
        """Return the units whose last place is in this Slurm job, in order."""
        return self.named(self.in_job.get(job, NOBODY))

    # --- changing ----------------------------------------------------------------------------------------------------

    def put(self, unit: Unit) -> UnitTable:
        """Return the table with a unit replaced by name, or added."""
        old = self.by_name.get(unit.name)
        if old is unit:
            return self
        table = replace(self, by_name=self.by_name.set(unit.name, unit))
        if old is None or old.place is not unit.place:
            table = table._placed(unit.name, old, unit)
        if unit.current.ran_as is not None and (old is None or old.current.ran_as is not unit.current.ran_as):
            table = replace(table, taken_over=table.taken_over.set(unit.current.ran_as, unit.name))
        if old is not None and old.current.ran_as is not None and unit.current.ran_as != old.current.ran_as:
            table = replace(table, taken_over=table.taken_over.delete(old.current.ran_as))
        if unit.group is None:
            return table if unit.name == LIGHTHOUSE else table._with_standby(old, unit)
        if old is None:
            table = replace(table, groups=max(table.groups, unit.group + 1))
        if old is None or old.phase is not unit.phase:
            phases = table.phases if old is None else _without(table.phases, old.phase, unit.name)
            table = replace(table, phases=_with(phases, unit.phase, unit.name))
        before, now = (False,) * len(Trait) if old is None else traits(old), traits(unit)
        if before != now:
            having = table.having
            for trait, was, is_ in zip(Trait, before, now, strict=True):
                if was != is_:
                    having = (_with if is_ else _without)(having, trait, unit.name)
            table = replace(table, having=having)
        return table

    def _with_standby(self, old: Unit | None, new: Unit) -> UnitTable:
        """Return the table with the name of a standby in `standbys` and `standbys_in`."""
        table = replace(self, standbys=(*self.standbys, new.name)) if old is None else self
        was = None if old is None else (old.phase, old.current.adoption is not None)
        now = (new.phase, new.current.adoption is not None)
        if was == now:
            return table
        index = table.standbys_in if was is None else _without(table.standbys_in, was, new.name)
        return replace(table, standbys_in=_with(index, now, new.name))

    def put_unnoticed(self, units: Iterable[Unit]) -> UnitTable:
        """Return the table with these units replaced by name, which no rule looks at because of that.

        For updates so frequent that the rules cannot look at each (signs of life). Phase, place and traits must be the
        same as before.
        """
        names = self.by_name.mutate()
        for unit in units:
            names[unit.name] = unit
        return replace(self, by_name=names.finish())

    def without_last_group(self) -> UnitTable:
        last = self.group(self.groups - 1)
        phases, having = _without(self.phases, last.phase, last.name), self.having
        for trait, is_ in zip(Trait, traits(last), strict=True):
            having = _without(having, trait, last.name) if is_ else having
        table = self._placed(last.name, last, None)
        names, groups = table.by_name.delete(last.name), table.groups - 1
        return replace(table, by_name=names, groups=groups, phases=phases, having=having)

    def _placed(self, name: str, old: Unit | None, new: Unit | None) -> UnitTable:
        on_node, in_job = self.on_node, self.in_job
        if old is not None and old.place is not None:
            for node in set(old.place.nodes):
                on_node = _without(on_node, node, name)
            in_job = in_job if old.place.allocation is None else _without(in_job, old.place.allocation, name)
        if new is not None and new.place is not None:
            for node in new.place.nodes:
                on_node = _with(on_node, node, name)
            in_job = in_job if new.place.allocation is None else _with(in_job, new.place.allocation, name)
        return replace(self, on_node=on_node, in_job=in_job)


def _place_in_order(unit: Unit) -> tuple[int, int, str]:
    if unit.group is not None:
        return 1, unit.group, ""
    return (0 if unit.is_lighthouse else 2), 0, unit.name


def _with(index: Map[K, Names], key: K, name: str) -> Map[K, Names]:
    return index.set(key, index.get(key, NOBODY).set(name, None))


def _without(index: Map[K, Names], key: K, name: str) -> Map[K, Names]:
    rest = index.get(key, NOBODY)
    rest = rest.delete(name) if name in rest else rest
    return index.set(key, rest) if rest else (index.delete(key) if key in index else index)
