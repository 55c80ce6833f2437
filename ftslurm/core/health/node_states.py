"""Ask what Slurm says of the run's nodes when a group has failed, before its next attempt. Pure.

An administrator who drains a node wants it back, mostly because it is bad: a group that starts again goes elsewhere, if
it can. What runs there goes on. One question about all nodes is asked while the failed step is brought down.
"""

from __future__ import annotations

import re

from ftslurm.core.health import silence
from ftslurm.core.state.actions import AskNodes
from ftslurm.core.state.events import NodeFate
from ftslurm.core.state.model import Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import records

ANSWER_S = 1.0  # a group that has failed waits at most this long for Slurm's answer
# Words of a state. One without any of them is of a newer Slurm, and changes nothing.
_DRAINS = re.compile(r"\b(drain|maint|reboot)")
_SERVES = re.compile(r"\b(idle|mix|alloc|comp|reserved|planned)")


def ask(turn: Turn) -> None:
    """Ask once after each failure."""
    nodes = turn.nodes
    if turn.config.cluster.kind not in ("slurm", "array") or not turn.goes_on:
        return
    if any(_failed(unit) > nodes.asked for unit in turn.attended()):
        about = nodes.shunned.union(*(allocation.nodes for allocation in turn.state.allocations()))
        turn.set_nodes(asked=turn.now, unanswered=bool(about))
        if about:
            turn.do(AskNodes(tuple(sorted(about))))
    elif nodes.unanswered and turn.due(nodes.asked + ANSWER_S):
        turn.set_nodes(unanswered=False)


def _failed(unit: Unit) -> float:
    """Return when a group that is to start again has ended; 0: it has not."""
    marks = {Phase.STOPPING: unit.current.failing, Phase.PENDING: unit.marks}.get(unit.phase)
    return 0.0 if marks is None or unit.group is None else marks.noticed or 0.0


def told(turn: Turn, event: NodeFate) -> None:
    """Apply Slurm's state of a node.

    A node that is down gets no further step. A drained one gets steps only if no other is free: Slurm still starts the
    job's steps there, but the administrator wants it back.
    """
    node, shunned, drains = event.node, turn.nodes.shunned, _DRAINS.search(event.state)
    why = f"Slurm says {event.state}" + (f": {event.reason}" if event.reason else "")
    if drains and node not in shunned:
        shunned = shunned | {node}
        turn.do(records.NodeShunned(node=node, reason=why))
    elif not drains and _SERVES.search(event.state) and node in shunned:
        shunned = shunned - {node}
        turn.do(records.NodeUnshunned(node=node, reason=why))
    turn.set_nodes(shunned=shunned, unanswered=False)
    if event.down:
        silence.exclude(turn, node, why)
