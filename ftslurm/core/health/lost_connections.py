"""Decide whether the lost connections of a rank come from a lost node of its step. Pure.

When a group of several nodes loses one, the ranks on the other nodes fail first, with errors about lost connections.
The guard of a killed rank reports it within WORDS_S. After that the silent nodes are asked in two ways: their
guards through the step's channel, whose answer shows that node and slurmstepd are well; the nodes by probes. The
step is not killed for at most KILL_S: after a kill, processes that died before it could not be told from killed ones.
No cause is decided, and no attempt launched, before the node has answered or counts as lost. Processes that the probe
finds do not acquit a node whose guard is silent: they may be dying.
"""

from __future__ import annotations

import signal

from ftslurm.core.groups.verdict import WORDS_S, silent_siblings
from ftslurm.core.health import node_health
from ftslurm.core.state.actions import Probe
from ftslurm.core.state.model import Evidence, Look, Phase, StepId, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages
from ftslurm.protocol.causes import Cause

KILL_S = 1.0  # the kill of a failed step is delayed by at most this, so that the probe sees its processes
SCANCEL_S = 0.5  # after SIGTERM srun has so long to say that Slurm has cancelled the step; a busy machine is late


def suspects(turn: Turn, unit: Unit) -> tuple[str, ...]:
    """Return the nodes of a failing step that are probed before its cause is decided."""
    return () if turn.local else silent_siblings(unit)


def failed(turn: Turn, unit: Unit) -> None:
    """Set when to kill a step after the failure of one of its tasks."""
    spared = bool(suspects(turn, unit))
    told = not turn.local and any(sign.signal == signal.SIGTERM for sign in unit.current.evidence)
    turn.attempt(unit, spared=spared)
    turn.change(unit, due=turn.now + (KILL_S if spared else SCANCEL_S if told else 0.0))


def holds(turn: Turn, step: StepId) -> bool:
    """Return whether the cause of an ended step waits for the probes of its nodes.

    It waits for a limited time: slurmctld may be down while the node is well.
    """
    unit = turn.table.living(step)
    if unit is None or not turn.goes_on or not suspects(turn, unit):
        return False
    return not turn.due(_noticed(unit) + WORDS_S + turn.config.health.lost_after_s)


def judge(turn: Turn) -> None:
    """Send the probes and add their results to the evidence."""
    if not turn.goes_on or turn.local:
        return
    for unit in turn.table.stopping():
        for node in suspects(turn, unit):
            look = turn.nodes.of(node).look
            if look is None or node_health.stale(turn, look) or (look.answered or _noticed(unit)) < _noticed(unit):
                _ask(turn, unit, node)
                continue
            sign = _sign(turn, unit, node, look)
            if sign is not None:
                unit = _blame(turn, unit, node, sign)
                break
        if unit.current.spared and unit.phase is Phase.STOPPING and not suspects(turn, unit):
            turn.change(unit, due=min(unit.due, turn.now))


def _ask(turn: Turn, unit: Unit, node: str) -> None:
    """Probe a suspected node and ask its guards, once those of the failed ranks have had time to report."""
    if turn.due(_noticed(unit) + WORDS_S):
        turn.node(node, look=Look(_noticed(unit), turn.now))
        turn.do(Probe(node, unit.place.allocation))
        turn.send(unit, messages.Where())


def _blame(turn: Turn, unit: Unit, node: str, sign: Evidence) -> Unit:
    """Add what a probe has shown to the evidence, and have the step killed; exclude the node if it is lost."""
    if sign.node_lost:
        node_health.exclude(turn, node, sign.error or "lost")
    unit = turn.change(unit, due=min(unit.due, turn.now))
    return turn.attempt(unit, evidence=(*unit.current.evidence, sign))


def _noticed(unit: Unit) -> float:
    assert unit.current.failing.noticed is not None
    return unit.current.failing.noticed


def _sign(turn: Turn, unit: Unit, node: str, look: Look) -> Evidence | None:
    """Return the evidence from the probe of a silent node; None: no answer yet, or its guard may still speak."""
    task, others = unit.task_on(node), f"others lost their connection to {node}"
    if look.answered is None:
        heard = node_health.last_heard(turn, node, look)
        late = node_health.unreached(turn, look, turn.config.health.lost_after_s / 2)
        if late and (heard is None or heard <= _noticed(unit) + WORDS_S):
            return node_health.lost(task, node, f"{others}, and a probe does not reach it")
        return None
    if not look.reachable:
        return node_health.lost(task, node, f"{others}, and Slurm cannot start a step there")
    if look.letters(unit.id) == "" and look.asked < _noticed(unit) + KILL_S:  # later: we have killed them
        return node_health.gone(task, node)
    if turn.due(_noticed(unit) + KILL_S):
        error = f"{others}, which answers, but the guard of the step there does not"
        return Evidence(task, node, error=error, cause=Cause.UNKNOWN, stuck=True)
    return None
