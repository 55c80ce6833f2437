"""Decide whether a step of which nothing is left was lost with its node, after asking Slurm. Pure.

When a node and the controller are lost together, no controller notices that the node is silent. The next controller
finds a job that Slurm has requeued, as after preemption, or a node without the step's guard, as after a kill. A node
that is back before its loss is noticed looks like one on which something has killed the slurmstepd.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ftslurm.config.schema import Config
from ftslurm.core.health import silence
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Ended, NodeFate
from ftslurm.core.state.model import LIVE, Evidence, Fate, StepId, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.units import swap
from ftslurm.core.state.values import replace
from ftslurm.protocol.causes import Cause

ANSWER_S = 5.0  # wait at most this long for Slurm's answer
RECENT_S = 600.0  # a slurmd that started at most this long ago may have started because its node was lost


def gone(state: RunState, unit: Unit, cause: Cause, words: str, ended: Ended, now: float) -> RunState:
    """Stop a step that never answered and whose job ended or was requeued; the cause waits for Slurm's answer."""
    sign = Evidence(None, None, error=words, cause=cause, doubtful=True)
    unit = stop(replace(unit, current=replace(unit.current, adoption=None)), cause, inf, now, sign)
    return replace(swap(state, unit), held=(*state.held, ended))


def holds(state: RunState, step: StepId, now: float) -> bool:
    """Return whether the cause of an ended step waits for Slurm's state of its nodes."""
    unit = state.table.living(step)
    if unit is None:
        return False
    known = {fate.node: fate for fate in state.nodes.fates}
    fates = [known.get(node) for node in _nodes(unit)]
    return any(fate is None or (not fate.answered and now < fate.asked + ANSWER_S) for fate in fates)


def told(state: RunState, event: NodeFate) -> RunState:
    """Record Slurm's answer about a node."""
    fates = (
        replace(f, answered=True, down=event.down, since=event.since) if f.node == event.node else f
        for f in state.nodes.fates
    )
    return replace(state, nodes=replace(state.nodes, fates=tuple(fates)))


def judge(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Note the nodes of doubtful steps (node_states.py asks); one that is down, or has just restarted, is the cause."""
    actions: list[Action] = []
    failing = state.table.stopping()
    asked = {node for unit in failing for node in _nodes(unit)}
    if not asked and not state.nodes.fates:
        return state, actions
    fates = tuple(fate for fate in state.nodes.fates if fate.node in asked)
    if fates != state.nodes.fates:
        state = replace(state, nodes=replace(state.nodes, fates=fates))
    if new := tuple(sorted(asked - {fate.node for fate in state.nodes.fates})):
        state = replace(state, nodes=replace(state.nodes, fates=(*fates, *(Fate(node, now) for node in new))))
    for unit in failing:
        lost = next((f for f in state.nodes.fates if f.node in _nodes(unit) and _lost(f, unit, now)), None)
        if lost is not None:
            how = "is down" if lost.down else "was started again"
            error = f"{lost.node} {how}, and nothing is left of the step"
            sign = Evidence(None, lost.node, node_lost=True, error=error, stuck=True)
            signs = (*(sign for sign in unit.current.evidence if not sign.doubtful), sign)
            state = swap(state, replace(unit, current=replace(unit.current, evidence=signs, intent=None)))
            if lost.down:
                state, more = silence.exclude(state, lost.node, error, now, config)
                actions += more
    return state, actions


def deadlines(state: RunState) -> Iterator[float]:
    """Yield the times at which the wait for an answer ends."""
    return (fate.asked + ANSWER_S for fate in state.nodes.fates if not fate.answered)


def _nodes(unit: Unit) -> tuple[str, ...]:
    """Return the nodes of a step that its doubtful signs are about; none for any other step."""
    doubts = [sign.node for sign in unit.current.evidence if sign.doubtful] if unit.phase in LIVE else []
    if unit.place is None or not doubts:
        return ()
    return tuple(node for node in unit.place.nodes if node in doubts or None in doubts)


def _lost(fate: Fate, unit: Unit, now: float) -> bool:
    launched = unit.marks.launched or 0.0
    anew = fate.since is not None and launched < fate.since and now < fate.since + RECENT_S
    return fate.answered and (fate.down or anew)
