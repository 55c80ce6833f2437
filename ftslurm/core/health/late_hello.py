"""Start a group elsewhere when its new step has not answered in twice the usual time: its node may be dying. Pure.

Slurm accepts steps for a node that has just died, until slurmctld notices. Without this rule such a group waits for
health.lost_after_s and a probe. The usual time is learnt from the launches of this run. A node from which another step
is heard is not left out.

The silent attempt is ended before the next one is launched, so two never run beside each other. Two in a race would
gain at most the time between twice and three times the usual one, if the first answers after all; they would need a
second place, and a rule for which one is fenced. The attempt does not count for restart.max_per_group. The rule is
applied once in a row: if the next step is late too, Slurm is slow, and the limits of silence.py decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ftslurm.config.schema import Config
from ftslurm.core.groups import standby
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.groups.launching import PlaceFinder
from ftslurm.core.health import silence
from ftslurm.core.state.actions import Action
from ftslurm.core.state.model import Evidence, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.units import swap
from ftslurm.core.state.values import replace
from ftslurm.protocol.causes import Cause

KEPT = 15  # launches that are remembered
HEARTBEATS = 2.0  # a node is heard if the last one is not older than so many intervals


def answered(state: RunState, unit: Unit, now: float) -> RunState:
    """Learn from a step whose tasks have all said hello."""
    if unit.marks.launched is None or unit.is_lighthouse:
        return state
    return replace(state, hello_times=(*state.hello_times, round(now - unit.marks.launched, 3))[-KEPT:])


def watch(state: RunState, now: float, config: Config) -> Outcome:
    """End the steps that are late, if their groups have another place, and leave out their nodes until a probe."""
    actions: list[Action] = []
    if state.ending is not None:
        return state, actions
    for unit in state.attended():
        if now < _due(unit):
            continue
        state = swap(state, replace(unit, current=replace(unit.current, answer_by=inf)))
        mute = tuple(node for node in _mute(unit) if not _is_heard(state, node, now, config))
        if not mute or not _has_other_place(state, unit, mute, now, config):
            continue
        assert unit.marks.launched is not None
        took_s = now - unit.marks.launched
        error = f"its step on {', '.join(mute)} has not answered {took_s:.1f} s after the launch, twice the usual time"
        sign = Evidence(None, mute[0], error=error, cause=Cause.LATE_START, stuck=True)
        state = swap(state, stop(unit, Cause.LATE_START, now, now, sign, detect_s=round(took_s, 3)))
        for node in mute:
            state, more = silence.exclude(state, node, f"a step there has not answered in {took_s:.1f} s", now, config)
            actions += more
    return state, actions


def due_times(unit: Unit) -> Iterator[float]:
    """Yield the time at which `watch` must look at a unit."""
    if _due(unit) < inf:
        yield _due(unit)


def _due(unit: Unit) -> float:
    waits = unit.phase is Phase.STARTING and unit.marks.hello is None and unit.current.adoption is None
    moved = bool(unit.exits) and unit.exits[-1].cause is Cause.LATE_START
    return unit.current.answer_by if waits and unit.group is not None and not moved else inf


def _mute(unit: Unit) -> list[str]:
    """Return the nodes of a step that have not said hello."""
    return [node for node in unit.place.nodes if node not in unit.current.hosts] if unit.place else []


def _is_heard(state: RunState, node: str, now: float, config: Config) -> bool:
    """Return whether another step on a node sends heartbeats: then the node is slow, not dying."""
    last = silence.last_pulse(state, node)
    return last is not None and now - last < HEARTBEATS * config.heartbeat_s


def _has_other_place(state: RunState, unit: Unit, mute: tuple[str, ...], now: float, config: Config) -> bool:
    """Return whether the group can be launched now without these nodes: with a standby, or on spare nodes."""
    if config.cluster.kind == "local" or config.health.lost_after_s == inf:
        return False  # all nodes are this machine, or silence is no evidence at all
    without = replace(state, nodes=replace(state.nodes, avoid=state.nodes.avoid | frozenset(mute)))
    if standby.pick(without, unit, config) is not None:
        return True
    return PlaceFinder(now, config, many=True).find(without, unit) is not None
