"""Decide whether a step of which nothing is left was lost with its node, after asking Slurm. Pure.

When a node and the controller are lost together, no controller notices that the node is silent. The next controller
finds a job that Slurm has requeued, as after preemption, or a node without the step's guard, as after a kill. A node
that is back before its loss is noticed looks like one on which something has killed the slurmstepd.
"""

from __future__ import annotations

from math import inf

from ftslurm.core.health import silence
from ftslurm.core.state.events import Ended, NodeFate
from ftslurm.core.state.model import LIVE, Evidence, Fate, StepId, Unit
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.values import replace
from ftslurm.protocol.causes import Cause

ANSWER_S = 5.0  # wait at most this long for Slurm's answer
RECENT_S = 600.0  # a slurmd that started at most this long ago may have started because its node was lost


def gone(turn: Turn, unit: Unit, cause: Cause, words: str, ended: Ended) -> None:
    """Stop a step that never answered and whose job ended or was requeued; the cause waits for Slurm's answer."""
    unit = turn.attempt(unit, adoption=None)
    stop(turn, unit, cause, Evidence(None, None, error=words, cause=cause, doubtful=True), due=inf)
    turn.set(held=(*turn.state.held, ended))


def holds(turn: Turn, step: StepId) -> bool:
    """Return whether the cause of an ended step waits for Slurm's state of its nodes."""
    unit = turn.table.living(step)
    if unit is None:
        return False
    known = {fate.node: fate for fate in turn.nodes.fates}
    fates = [known.get(node) for node in _nodes(unit)]
    return any(fate is None or not (fate.answered or turn.due(fate.asked + ANSWER_S)) for fate in fates)


def told(turn: Turn, event: NodeFate) -> None:
    """Record Slurm's answer about a node."""
    fates = (
        replace(f, answered=True, down=event.down, since=event.since) if f.node == event.node else f
        for f in turn.nodes.fates
    )
    turn.set_nodes(fates=tuple(fates))


def judge(turn: Turn) -> None:
    """Note the nodes of doubtful steps (node_states.py asks); one that is down, or has just restarted, is the cause."""
    failing = turn.table.stopping()
    asked = {node for unit in failing for node in _nodes(unit)}
    if not asked and not turn.nodes.fates:
        return
    known = tuple(fate for fate in turn.nodes.fates if fate.node in asked)
    new = sorted(asked - {fate.node for fate in known})
    fates = (*known, *(Fate(node, turn.now) for node in new))
    turn.set_nodes(fates=fates)
    for unit in failing:
        lost = next((f for f in turn.nodes.fates if f.node in _nodes(unit) and _lost(f, unit, turn.now)), None)
        if lost is not None:
            _blame(turn, unit, lost)


def _blame(turn: Turn, unit: Unit, fate: Fate) -> None:
    """Replace the doubtful signs of a step by the loss of its node; exclude a node that is still down."""
    how = "is down" if fate.down else "was started again"
    error = f"{fate.node} {how}, and nothing is left of the step"
    sign = Evidence(None, fate.node, node_lost=True, error=error, stuck=True)
    certain = (sign for sign in unit.current.evidence if not sign.doubtful)
    turn.attempt(unit, evidence=(*certain, sign), intent=None)
    if fate.down:
        silence.exclude(turn, fate.node, error)


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
