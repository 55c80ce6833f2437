"""What Slurm says of the run's nodes, and what their checks do (health.preflight). Pure.

Slurm is asked when a group has failed, before its next attempt.

An administrator who drains a node wants it back, mostly because it is bad: a group that starts again goes elsewhere, if
it can. What runs there goes on. One question about all nodes is asked while the failed step is brought down.
"""

from __future__ import annotations

from ftslurm.core.health import silence
from ftslurm.core.jobs import supply
from ftslurm.core.state.actions import AskNodes, NoteBroken
from ftslurm.core.state.events import NodeFate
from ftslurm.core.state.model import Nodes, Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages, records

MOST_NAMED = 3  # nodes that have failed their check
ANSWER_S = 1.0  # a group that has failed waits at most this long for Slurm's answer


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
    node, shunned = event.node, turn.nodes.shunned
    if event.drained and node not in shunned:
        shunned = shunned | {node}
        turn.do(records.NodeShunned(node=node, reason=event.why))
    elif event.drained is False and node in shunned:
        shunned = shunned - {node}
        turn.do(records.NodeUnshunned(node=node, reason=event.why))
    turn.set_nodes(shunned=shunned, unanswered=False)
    if event.down:
        silence.exclude(turn, node, event.why)


def checked(turn: Turn, said: messages.NodeCheck) -> str | None:
    """Apply the result of a node's check, which a guard may repeat. Return why the node has failed; None: it has not.

    A node that fails is excluded for the rest of the run, unless a user asks to check it again (`ftslurm undrain`). If
    no other is left of a run none of whose nodes has passed, the run ends.
    """
    nodes, node = turn.nodes, said.node
    if said.error is None:
        if node not in nodes.passed:
            turn.set_nodes(passed=nodes.passed | {node})
            turn.do(records.NodeCheckPassed(node=node, seconds=said.seconds, log=said.log))
        return None
    why = f"{said.error}; see {said.log}" if said.log else said.error
    if node in nodes.failed:
        return why
    turn.set_nodes(
        avoid=nodes.avoid | {node},
        returning=tuple(back for back in nodes.returning if back.node != node),
        suspected=tuple(pair for pair in nodes.suspected if pair[0] != node),
        passed=nodes.passed - {node},
        failed=nodes.failed.set(node, why),
    )
    turn.do(records.NodeCheckFailed(node=node, reason=said.error, seconds=said.seconds, log=said.log))
    turn.do(NoteBroken(node, said.error))
    supply.told_to_avoid(turn)
    groups, nodes = turn.config.groups, turn.nodes
    others = {node for allocation in turn.state.allocations() for node in allocation.nodes} - nodes.unfit
    needed = groups.nodes * -(-groups.count // groups.per_node)
    if turn.goes_on and not (nodes.passed or others or turn.lineage.step) and len(nodes.failed) >= needed:
        what = "none of the run's nodes has passed its check (health.preflight)"
        turn.fail(f"{what}: {unfit(nodes)}; mend the nodes, or change the commands of health.preflight")
    return why


def unfit(nodes: Nodes) -> str:
    """Name the nodes that have failed their check, with the reasons; empty: there are none."""
    more = len(nodes.failed) - MOST_NAMED
    named = "; ".join(f"{node}: {reason}" for node, reason in sorted(nodes.failed.items())[:MOST_NAMED])
    return f"{named}; and {more} more" if more > 0 else named
