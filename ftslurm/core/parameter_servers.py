"""Parameter servers: where they are, who has to be told, and how far they are. Pure.

A server that is brought back has another address. So every group's guards forward to it (guard/proxy.py) and are
told when it goes and when it is there again; level, not edge, as with the Lighthouse (orders.py).
"""

from __future__ import annotations

from typing import NamedTuple

from ftslurm.config.schema import Config
from ftslurm.core.groups import fault_drills
from ftslurm.core.groups.timings import phases, recovery_s, since
from ftslurm.core.state.actions import Action, Servers
from ftslurm.core.state.events import Served, Serving, SessionOpened
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.units import independent, serves, swap
from ftslurm.core.state.values import replace
from ftslurm.protocol import records


def urls(state: RunState, config: Config) -> tuple[str, ...]:
    """Where the server of each serving group is, in the order of their ids; empty: nowhere at the moment."""
    if not config.groups.serve:
        return ()
    serving = (unit for unit in state.groups if serves(unit.group, config))
    return tuple(unit.current.url or "" if unit.phase is Phase.RUNNING else "" for unit in serving)


def tell(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Send the current addresses of the servers to the groups that have others."""
    if not config.groups.serve or state.ending is not None:
        return state, []
    there, actions = urls(state, config), list[Action]()
    for unit in state.groups:  # few runs have servers
        if unit.phase in LIVE and unit.current.assigned and unit.current.servers != there:
            state = swap(state, replace(unit, current=replace(unit.current, servers=there)))
            actions.append(Servers(unit.id, there))
    return state, actions


def observe(
    event: Serving | Served | SessionOpened, state: RunState, unit: Unit, now: float, config: Config
) -> tuple[RunState, list[Action]]:
    """What was seen of a parameter server; where groups have a quorum, a script's own is its own business."""
    if not independent(config):
        return state, []
    if isinstance(event, Served):
        return _served(event, state, unit, now, config)
    return _serving(event, state, unit, now) if isinstance(event, Serving) else _opened(event, state, unit, now)


def _serving(event: Serving, state: RunState, unit: Unit, now: float) -> tuple[RunState, list[Action]]:
    """A server is up."""
    unit, back = _back(unit, now)
    record = records.Serving(
        unit=unit.name,
        group=unit.group_id,
        attempt=unit.attempt,
        url=event.url,
        seconds=back.seconds,
        recovery_s=back.recovery_s,
        phases=back.phases,
    )
    return swap(state, replace(unit, current=replace(unit.current, url=event.url))), [record]


def _opened(event: SessionOpened, state: RunState, unit: Unit, now: float) -> tuple[RunState, list[Action]]:
    """A group has a session with a server; its first is when it is back."""
    unit, back = _back(unit, now)
    record = records.SessionOpened(
        group=unit.group_id,
        attempt=unit.attempt,
        sessions=event.sessions,
        seconds=back.seconds,
        recovery_s=back.recovery_s,
        phases=back.phases,
    )
    return swap(state, unit), [record]


def _served(event: Served, state: RunState, unit: Unit, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """How far a server is. The step of the run is its step, also if that goes back."""
    progress = records.Progress(
        group=unit.group_id,
        attempt=unit.attempt,
        step=event.step,
        quorum_id=None,
        participants=None,
        committed=None,
        aborted=None,
        gap_s=None,
        sessions=event.sessions,
    )
    actions: list[Action] = [progress]
    if event.step is not None and serves(unit.group, config):
        state = swap(
            replace(state, lineage=replace(state.lineage, step=event.step)),
            replace(unit, current=replace(unit.current, step=event.step)),
        )
        for group in state.groups:
            state, drills = fault_drills.inject_planned(state, group, now, config, event.step)
            actions += drills
    return state, actions


class _Back(NamedTuple):
    """What a group's way back to its work took; all None: it was at work before."""

    seconds: float | None = None
    recovery_s: float | None = None
    phases: dict[str, float | None] | None = None


def _back(unit: Unit, now: float) -> tuple[Unit, _Back]:
    """Return the unit, at work from now on, and what its way there took."""
    if unit.marks.joined is not None:
        return unit, _Back()
    unit = replace(unit, marks=replace(unit.marks, joined=now))
    return unit, _Back(since(unit.marks.launched, now), recovery_s(unit.marks, now), phases(unit.marks))
