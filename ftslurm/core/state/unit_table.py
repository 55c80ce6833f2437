"""All units of a run as one immutable value with an index.

A run may have 1,000 replica groups, so a decision must not look at every group because one of them has changed. `put`
returns a table with one unit changed, in O(log n). The index holds what the rules need: which groups are in a phase,
which units are on a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import TypeAlias

from immutables import Map

from ftslurm.core.state.model import LIVE, Phase, StepId, Trait, Unit, replace
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit
from ftslurm.protocol.value_class import Value

Names = Map[str, None]  # a set of units' names
NOBODY: Names = Map()


# What the index knows of a unit. A StepId: of the standby that has become it.
Key: TypeAlias = Phase | Trait | StepId | tuple[object, ...]


def _keys(unit: Unit | None) -> frozenset[Key]:
    """Return the keys under which a unit is in the index."""
    if unit is None:
        return frozenset()
    keys, current, place = set[Key](), unit.current, unit.place
    keys |= {(Trait.ON_NODE, node) for node in place.nodes} | {(Trait.IN_JOB, place.allocation)}
    if current.ran_as is not None:
        keys.add(current.ran_as)
    if unit.is_standby:
        keys.add((Trait.STANDBY, unit.phase, unit.adopting))
    if unit.group is not None:
        traits = {
            Trait.JOINED: unit.joined,
            Trait.ADOPTING: unit.adopting,
            Trait.WAITING: unit.waits_for is not None,
            Trait.RETIRED: unit.retired,
            Trait.PARTED: unit.phase is Phase.RUNNING and 0 < len(current.over | current.done) < len(unit.pulses),
        }
        keys |= {unit.phase, *(trait for trait, has in traits.items() if has)}
    return frozenset(keys)


class UnitTable(Value):
    """The Lighthouse, the groups and the standbys. Two tables with the same units are equal."""

    by_name: Map[str, Unit] = Map()
    groups: int = 0  # the groups have the numbers 0 to groups - 1
    standbys: tuple[str, ...] = ()
    index: Map[Key, Names] = field(default=Map(), compare=False)

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
        yield from self.all_standbys()

    def group(self, number: int) -> Unit:
        return self.by_name[group_unit(number)]

    def all_groups(self) -> Iterator[Unit]:
        return (self.by_name[group_unit(number)] for number in range(self.groups))

    def all_standbys(self) -> Iterator[Unit]:
        return (self.by_name[name] for name in self.standbys)

    def living(self, step: StepId) -> Unit | None:
        """Return the unit whose live step this is; None: the step is over."""
        unit = self.by_name.get(next(iter(self.names(step)), step.unit))
        return unit if unit is not None and unit.phase in LIVE and unit.id == step else None

    def names(self, key: Key) -> Names:
        """Return the names of the units with a property: of groups, if it is a phase or a trait."""
        return self.index.get(key, NOBODY)

    def count(self, *keys: Key) -> int:
        """Return the number of groups in one of these phases, or with a trait."""
        return sum(len(self.names(key)) for key in keys)

    def in_phase(self, *phases: Phase) -> list[Unit]:
        """Return the groups in one of these phases, in order."""
        return self.named(name for phase in phases for name in self.names(phase))

    def stopping(self) -> tuple[Unit, ...]:
        """Return the Lighthouse, whatever its phase, and the standbys and groups that are brought down."""
        others = (unit for unit in self.all_standbys() if unit.phase is Phase.STOPPING)
        return (self.by_name[LIGHTHOUSE], *others, *self.in_phase(Phase.STOPPING))

    def named(self, names: Iterable[str]) -> list[Unit]:
        """Return the units of these names, in order, without those that are no longer in the table."""
        units = (self.by_name.get(name) for name in names)
        return sorted((unit for unit in units if unit is not None), key=_place_in_order)

    def near(self, *nodes: str) -> list[Unit]:
        """Return the units whose last place has one of these nodes, in order."""
        return self.named({name for node in nodes for name in self.names((Trait.ON_NODE, node))})

    def of_job(self, job: str) -> list[Unit]:
        """Return the units whose last place is in this Slurm job, in order."""
        return self.named(self.names((Trait.IN_JOB, job)))

    # --- changing ----------------------------------------------------------------------------------------------------

    def put(self, unit: Unit) -> UnitTable:
        """Return the table with a unit replaced by name, or added."""
        old, table = self.by_name.get(unit.name), self
        if old is None and unit.group is not None:
            table = replace(self, groups=max(self.groups, unit.group + 1))
        elif old is None and unit.is_standby:
            table = replace(self, standbys=(*self.standbys, unit.name))
        return replace(table, by_name=self.by_name.set(unit.name, unit), index=self._indexed(unit.name, old, unit))

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
        names, index = self.by_name.delete(last.name), self._indexed(last.name, last, None)
        return replace(self, by_name=names, groups=self.groups - 1, index=index)

    def indexed(self, before: UnitTable) -> UnitTable:
        """Return the table with its index, updated from the index of `before`. Only units that differ take time."""
        table = replace(self, index=before.index)
        for name in {*before.by_name, *self.by_name}:
            old, new = before.by_name.get(name), self.by_name.get(name)
            if old is not new:
                table = replace(table, index=table._indexed(name, old, new))
        return table

    def _indexed(self, name: str, old: Unit | None, new: Unit | None) -> Map[Key, Names]:
        """Return the index after a change of a unit."""
        index, before, now = self.index, _keys(old), _keys(new)
        for key in before - now:
            rest = index[key].delete(name)
            index = index.set(key, rest) if rest else index.delete(key)
        for key in now - before:
            index = index.set(key, index.get(key, NOBODY).set(name, None))
        return index


def _place_in_order(unit: Unit) -> tuple[int, int, str]:
    if unit.group is not None:
        return 1, unit.group, ""
    return (0 if unit.is_lighthouse else 2), 0, unit.name
