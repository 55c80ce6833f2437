"""One decision in the making: the state and the actions so far.

`rules.decide` makes a Turn and returns what is in it at the end, so it stays pure: the folds and the rules change the
Turn, and the values in it are immutable. A Turn whose rule has raised is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Action, Send
from ftslurm.core.state.model import Ending, Job, Lineage, Nodes, RunOutcome, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import Trait, UnitTable
from ftslurm.core.state.units import independent
from ftslurm.core.state.values import replace
from ftslurm.protocol.messages import Message
from ftslurm.protocol.value_class import Value

V = TypeVar("V", bound=Value)


class Turn:
    """What the folds and rules of one decision read and change.

    A change of a unit has only the named fields: it is applied to what the unit is now, not to what the caller holds.
    """

    def __init__(self, state: RunState, now: float, config: Config) -> None:
        self.state = state
        self.now = now
        self.config = config
        self.actions: list[Action] = []

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def table(self) -> UnitTable:
        return self.state.table

    @property
    def nodes(self) -> Nodes:
        return self.state.nodes

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.state.job_pool.jobs

    @property
    def lighthouse(self) -> Unit:
        return self.state.lighthouse

    @property
    def goes_on(self) -> bool:
        """Whether the run is not being brought to an end."""
        return self.state.ending is None

    @property
    def independent(self) -> bool:
        """Whether groups have no quorum: none waits for another, heals from it, or is too late once it finished."""
        return independent(self.config)

    @property
    def local(self) -> bool:
        """Whether all nodes are this machine: none is lost, excluded or probed."""
        return self.config.cluster.kind == "local"

    def unit(self, name: str) -> Unit:
        return self.state.table.by_name[name]

    def attended(self) -> list[Unit]:
        """Return the units that the rules must look at, in order."""
        return self.state.attended()

    def having(self, trait: Trait) -> list[Unit]:
        """Return the groups that have a trait, in order."""
        return self.table.named(self.table.having_trait(trait))

    # --- changing ----------------------------------------------------------------------------------------------------

    def change(self, unit: Unit, **fields: Any) -> Unit:
        """Change these fields of a unit, and return it."""
        return self.put(_with(self.unit(unit.name), fields))

    def attempt(self, unit: Unit, **fields: Any) -> Unit:
        """Change these fields of a unit's current attempt, and return the unit."""
        unit = self.unit(unit.name)
        return self.put(replace(unit, current=_with(unit.current, fields)))

    def mark(self, unit: Unit, **times: Any) -> Unit:
        """Change these times of a unit's stages, and return the unit."""
        unit = self.unit(unit.name)
        return self.put(replace(unit, marks=_with(unit.marks, times)))

    def put(self, unit: Unit) -> Unit:
        """Replace a unit by name as a whole, or add one."""
        self.set(table=self.table.put(unit))
        return unit

    def put_unnoticed(self, units: Iterable[Unit]) -> None:
        """As UnitTable.put_unnoticed."""
        self.set(table=self.table.put_unnoticed(units))

    def set(self, **fields: Any) -> None:
        """Change these fields of the run's state."""
        self.state = _with(self.state, fields)

    def set_lineage(self, **fields: Any) -> None:
        self.set(lineage=_with(self.lineage, fields))

    def set_nodes(self, **fields: Any) -> None:
        self.set(nodes=_with(self.nodes, fields))

    def set_job_pool(self, **fields: Any) -> None:
        self.set(job_pool=_with(self.state.job_pool, fields))

    def set_drills(self, **fields: Any) -> None:
        self.set(drills=_with(self.state.drills, fields))

    def fail(self, reason: str) -> None:
        """Bring the run to an end, as failed."""
        self.set(ending=Ending(RunOutcome.FAILED, reason))

    # --- acting ------------------------------------------------------------------------------------------------------

    def do(self, *actions: Action) -> None:
        """Journal these records and carry out these actions after the decision; all records come first."""
        self.actions += actions

    def send(self, unit: Unit, message: Message) -> None:
        """Send a message to the guards of a unit's step, or to the Lighthouse."""
        self.do(Send(unit.id, message))


def _with(value: V, fields: dict[str, Any]) -> V:
    unknown = fields.keys() - vars(value).keys()
    if unknown:
        raise TypeError(f"{type(value).__name__} has no {', '.join(sorted(unknown))}")
    return replace(value, **fields)  # type: ignore[type-var]  # every Value is a dataclass
