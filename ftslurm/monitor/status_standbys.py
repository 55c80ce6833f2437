"""How do the warm standbys stand? A fold over their lines of the journal, for status.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftslurm.core.state.model import Phase
from ftslurm.run.journal import Event, integer, names, text

STANDBY = "standby-"  # how the names of standbys begin


@dataclass(frozen=True)
class StandbyStatus:
    """One warm standby. PENDING: it has no step, because its last one became a group's or has ended."""

    name: str
    phase: Phase = Phase.PENDING
    attempt: int | None = None
    nodes: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether it could take over at once."""
        return self.phase is Phase.RUNNING


def is_standby(event: Event) -> bool:
    """Whether a line is about a standby's own step."""
    return (text(event, "unit") or "").startswith(STANDBY)


def after(standbys: tuple[StandbyStatus, ...], event: Event, phase: Phase) -> tuple[StandbyStatus, ...]:
    """The standbys, by name, after a line about one of them."""
    name, attempt = str(event["unit"]), integer(event, "attempt")
    known = {unit.name: unit for unit in standbys}
    unit = known.get(name, StandbyStatus(name))
    if phase is Phase.STARTING:
        unit = StandbyStatus(name, phase, attempt, names(event, "nodes"))
    elif attempt == unit.attempt:
        unit = replace(unit, phase=phase, nodes=() if phase is Phase.PENDING else unit.nodes)
    known[name] = unit
    return tuple(known[name] for name in sorted(known))


def taken(standbys: tuple[StandbyStatus, ...], step: str | None) -> tuple[StandbyStatus, ...]:
    """The standby whose step ("standby-000/1") has become a group's is none any more until it is launched again."""
    return tuple(replace(u, phase=Phase.PENDING, nodes=()) if f"{u.name}/{u.attempt}" == step else u for u in standbys)
