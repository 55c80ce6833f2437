"""One decision in the making: the state and the actions so far.

`rules.decide` makes a Turn and returns what is in it at the end, so it stays pure: the folds and the rules change the
Turn, and the values in it are immutable. A Turn whose rule has raised is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, TypeVar

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Action, Send
from ftslurm.core.state.model import (
    ALL,
    JOBS,
    RUN,
    Ending,
    Job,
    Lineage,
    Node,
    Nodes,
    Phase,
    RunOutcome,
    Trait,
    Unit,
    replace,
)
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.protocol import records
from ftslurm.protocol.messages import Order
from ftslurm.protocol.value_class import Value

V = TypeVar("V", bound=Value)
# Fields of the run, its lineage and its jobs on which the rules about every unit depend, beside the unit itself.
OF_ALL = {
    "allocation", "ending", "lighthouse_url", "nodes", "released", "retries",
    "lost", "restarted", "resuming", "rolling", "saving",
    "asking", "by_name", "polled",
}  # fmt: skip


class Turn:
    """What the folds and rules of one decision read and change.

    A change of a unit has only the named fields: it is applied to what the unit is now, not to what the caller holds.

    A run may have 1,000 groups, so most rules look only at what is awake: the units that have changed, and those for
    which a rule has found that a time has not come (`due`), once it has.
    """

    def __init__(self, state: RunState, now: float, config: Config) -> None:
        self.state = state
        self.now = now
        self.config = config
        self.actions: list[Action] = []
        self.awake: set[str] = {name for name, time in state.due.items() if time <= now}
        self._changed = set(self.awake)  # what is awake when the rules look the next time
        self._looked: set[str] = set()
        self._later: dict[str, float] = {}

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
    def lighthouse_serves(self) -> bool:
        """Whether the Lighthouse of this controller serves, and none before it, if the run has one."""
        unit = self.lighthouse
        return unit.phase is Phase.SUCCEEDED or (unit.phase is Phase.RUNNING and unit.marks.begun is not None)

    @property
    def goes_on(self) -> bool:
        """Whether the run is not being brought to an end."""
        return self.state.ending is None

    @property
    def independent(self) -> bool:
        """Whether groups have no quorum: none waits for another, heals from it, or is too late once it finished."""
        return self.config.independent

    @property
    def local(self) -> bool:
        """Whether all nodes are this machine: none is lost, excluded or probed."""
        return self.config.local

    def unit(self, name: str) -> Unit:
        return self.state.table.by_name[name]

    def attends_jobs(self) -> bool:
        """Return whether the rules must look at the jobs."""
        return JOBS in self.awake or ALL in self.awake

    def attended(self) -> list[Unit]:
        """Return the units that the rules must look at, in order."""
        return list(self.table) if ALL in self.awake else self.table.named(self.awake)

    def having(self, trait: Trait) -> list[Unit]:
        """Return the groups that have a trait, in order."""
        return self.table.named(self.table.names(trait))

    # --- when the rules look again ------------------------------------------------------------------------------------

    def due(self, time: float, name: str = RUN) -> bool:
        """Return whether this time has come. If not, the rules look again at what has this name once it has.

        Args:
            time: the time.
            name: of a unit that the rule looks at because it is awake; JOBS, if it looks at them because they are; RUN,
                if it compares in every decision.
        """
        if self.now >= time:
            return True
        self._later[name] = min(time, self._later.get(name, inf))
        return False

    def wake(self, name: str) -> None:
        """Have the rules look at a unit, at JOBS or at ALL: in this decision, also those that came before."""
        self.awake.add(name)
        self._changed.add(name)

    def begin(self) -> None:
        """Begin to apply the rules."""
        self.awake, self._changed = self._changed, set()
        self._looked |= self.awake
        for name in (RUN, *(self._later if ALL in self.awake else self.awake)):
            self._later.pop(name, None)

    def end(self) -> None:
        """Keep the times at which the rules look again."""
        due = {} if ALL in self._looked else {**self.state.due}
        for name in (RUN, *self._looked):
            due.pop(name, None)
        for name, time in self._later.items():
            due[name] = min(time, due.get(name, inf))
        self.set(due=due)

    # --- changing ----------------------------------------------------------------------------------------------------

    def change(self, unit: Unit, **fields: Any) -> Unit:
        """Change these fields of a unit, and return it."""
        return self.put(_with(self.unit(unit.name), fields))

    def attempt(self, unit: Unit, **fields: Any) -> Unit:
        """Change these fields of a unit's current attempt, and return the unit."""
        return self.change(unit, current=_with(self.unit(unit.name).current, fields))

    def mark(self, unit: Unit, **times: Any) -> Unit:
        """Change these times of a unit's stages, and return the unit."""
        return self.change(unit, marks=_with(self.unit(unit.name).marks, times))

    def put(self, unit: Unit) -> Unit:
        """Replace a unit by name as a whole, or add one."""
        before, old = self.table, self.table.by_name.get(unit.name)
        if old is unit:
            return unit
        self.set(table=before.put(unit))
        self.wake(unit.name)
        if self.table.index is not before.index:  # the rules about jobs depend on it
            self.wake(JOBS)
        is_new = old is None and unit.group is not None
        if is_new or (old is not None and unit.is_lighthouse and _differ(old, unit, ("phase", "attempt"))):
            self.wake(ALL)
        return unit

    def set(self, **fields: Any) -> None:
        """Change these fields of the run's state."""
        self.state = self._with(self.state, fields)

    def set_lineage(self, **fields: Any) -> None:
        self.set(lineage=self._with(self.lineage, fields))

    def set_nodes(self, **fields: Any) -> None:
        """Change these fields of the nodes. Equal ones change nothing: the rules would look at every unit again."""
        nodes = _with(self.nodes, fields)
        if nodes != self.nodes:
            self.set(nodes=nodes)

    def node(self, *names: str, **fields: Any) -> None:
        """Change these fields of nodes."""
        self._put_nodes({name: _with(self.nodes.of(name), fields) for name in names})

    def take_back(self, node: str, reason: str) -> None:
        """Use a node again that was left out."""
        self._put_nodes({node: self.nodes.of(node).back()})
        self.do(records.NodeRestored(node=node, reason=reason))

    def _put_nodes(self, changed: Mapping[str, Node]) -> None:
        nodes = self.nodes.put(changed)
        self.set_nodes(by_name=nodes.by_name, passed=nodes.passed)

    def set_job_pool(self, **fields: Any) -> None:
        self.set(job_pool=self._with(self.state.job_pool, fields))

    def fail(self, reason: str) -> None:
        """Bring the run to an end, as failed."""
        self.set(ending=Ending(RunOutcome.FAILED, reason))

    def _with(self, value: V, fields: dict[str, Any]) -> V:
        new = _with(value, fields)
        if _differ(value, new, OF_ALL.intersection(fields)):
            self.wake(ALL)
        return new

    # --- acting ------------------------------------------------------------------------------------------------------

    def do(self, *actions: Action) -> None:
        """Journal these records and carry out these actions after the decision; all records come first."""
        self.actions += actions

    def send(self, unit: Unit, message: Order) -> None:
        """Send a message to the guards of a unit's step, or to the Lighthouse."""
        self.do(Send(unit.id, message))


def _with(value: V, fields: dict[str, Any]) -> V:
    unknown = fields.keys() - vars(value).keys()
    if unknown:
        raise TypeError(f"{type(value).__name__} has no {', '.join(sorted(unknown))}")
    new = replace(value, **fields)  # type: ignore[type-var]  # every Value is a dataclass
    return new if _differ(value, new, fields) else value


def _differ(old: Value, new: Value, names: Iterable[str]) -> bool:
    return any(vars(old)[name] is not vars(new)[name] for name in names)
