"""A story whose controller is replaced at random moments: a takeover is the identity.

Each time the guards of all steps report at once, and Slurm shows the jobs that are known. Then the state is what it
was, but for the fields in ANEW and RENEWED, and the history goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

import said
from histories import Story
from made_values import changed, of

from ftslurm.core.lineage.takeover import RENEWED
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.kept import ANEW
from ftslurm.core.state.model import LIVE, SOUND, Unit, replace
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol import records
from ftslurm.protocol.value_class import Value

OFTEN = 0.15  # of the decisions a controller is replaced after


def known(unit: Unit) -> bool:
    """Return whether all guards of a step would answer another controller."""
    return unit.phase not in LIVE or (bool(unit.current.hosts) and None not in unit.current.hosts)


def reports(unit: Unit) -> Iterable[ev.Event]:
    """Yield what the guards of a step, and the Lighthouse, tell a new controller."""
    current, begun = unit.current, unit.marks.begun is not None
    for task in range(len(current.hosts)):
        facts: dict[str, Any] = {"ready": False}  # a Lighthouse has said no more to its guard
        if not unit.is_lighthouse:
            facts = {"ready": task in current.ready, "torchft": current.ready.get(task, "")}
            store = current.store if task == 0 else None
            facts |= {"assigned": current.assigned, "begun": begun, "store": store, "floor": current.floor}
            facts |= {"lighthouse": current.lighthouse, "at": current.step}
        yield said.adopted(unit.id, task, **facts)


def what_stays(state: RunState) -> RunState:
    """Return the state with the defaults of all fields that another controller begins anew."""
    plain = replace(state, table=replace(state.table, by_name=state.table.by_name))
    fields = {kind: {**ANEW.get(kind, {}), **RENEWED.get(kind, {})} for kind in {*ANEW, *RENEWED}}
    stays: RunState = changed(
        plain, {kind: {o.name: o.default for o in of(kind) if o.name in fields[kind]} for kind in fields}
    )
    nodes = {name: node for name, node in sorted(stays.nodes.by_name.items()) if node != SOUND}
    return replace(stays, nodes=replace(stays.nodes, by_name=nodes))


def differing(one: Any, other: Any, where: str = "state") -> list[str]:
    """Return the paths at which two values differ."""
    if one == other:
        return []
    if type(one) is type(other) and isinstance(one, Value):
        names = [field.name for field in fields(one) if field.compare]  # type: ignore[arg-type]
        found = [differing(getattr(one, name), getattr(other, name), f"{where}.{name}") for name in names]
        return [path for paths in found for path in paths]
    if hasattr(one, "items") and hasattr(other, "items") and set(one) == set(other):
        return [path for key in one for path in differing(one[key], other[key], f"{where}[{key}]")]
    return [f"{where}: {one!r} is now {other!r}"]


@dataclass
class Replaced(Story):
    """A story whose controller is replaced now and then."""

    dice: Random = field(default_factory=lambda: Random(0))
    replaced: int = 0
    has_begun: bool = False
    is_replacing: bool = False

    def turn(self, now: float, events: Sequence[ev.Event]) -> list[act.Action]:
        actions = super().turn(now, events)
        self.has_begun |= any(isinstance(event, ev.Granted) for event in events)
        if self.is_replacing or self.state.finished or self.dice.random() > OFTEN:
            return actions
        if not self.has_begun or not all(map(known, self.state.units)):
            return actions
        pool = self.state.job_pool
        if any(asking.count for asking in pool.asking.values()) or any(job.doubted for job in pool.jobs):
            return actions  # Slurm is being asked
        self.is_replacing = True
        actions += self.replace(now)
        self.is_replacing = False
        return actions

    def replace(self, now: float) -> list[act.Action]:
        """Have another controller take over and hear all guards at once; return what it does beside asking them."""
        before, since = self.state, len(self.done)
        live = [unit for unit in before.units if unit.phase in LIVE]
        elsewhere = self.config.job_per_group and self.dice.random() < 0.3  # its Lighthouse does not survive
        self.taken_over(now, home=f"home-{self.replaced}" if elsewhere else None)
        words = [event for unit in live for event in reports(unit)]
        up = [said.lighthouse_up(u.id, str(before.lighthouse_url)) for u in live if u.is_lighthouse and u.current.ready]
        seen = [ev.JobsSeen(before.job_pool.jobs, now)] if before.job_pool.polled else []
        self.turn(now, [*seen, *words, *up])
        self.replaced += 1
        changes = [] if elsewhere else differing(what_stays(before), what_stays(self.state))
        assert not changes, f"a takeover has changed {changes}"
        told = [action for _, action in self.done[since:] if isinstance(action, records.JournalRecord)]
        others = [record for record in told if not isinstance(record, records.StepAdopted | records.StepStarting)]
        assert elsewhere or not others, f"a takeover is told as {others}"  # status, report and summary are of these
        return [action for _, action in self.done[since:] if not isinstance(action, act.Attach | records.StepAdopted)]
