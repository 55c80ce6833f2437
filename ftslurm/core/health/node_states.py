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
from ftslurm.core.state.model import Nodes, Out, Phase, Unit
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
        about = nodes.those(lambda node: node.shunned).union(
            *(allocation.nodes for allocation in turn.state.allocations())
        )
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
    node = event.node
    if event.drained is not None and event.drained is not turn.nodes.of(node).shunned:
        turn.do((records.NodeShunned if event.drained else records.NodeUnshunned)(node=node, reason=event.why))
        turn.node(node, shunned=event.drained)
    turn.set_nodes(unanswered=False)
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
    if nodes.of(node).out is Out.UNFIT:
        return why
    turn.node(node, out=Out.UNFIT, since=turn.now, why=why)
    turn.do(records.NodeCheckFailed(node=node, reason=said.error, seconds=said.seconds, log=said.log))
    turn.do(NoteBroken(node, said.error))
    supply.told_to_avoid(turn)
    groups, nodes, failed = turn.config.groups, turn.nodes, turn.nodes.out(Out.UNFIT)
    others = {node for allocation in turn.state.allocations() for node in allocation.nodes} - failed
    needed = groups.nodes * -(-groups.count // groups.per_node)
    if turn.goes_on and not (nodes.passed or others or turn.lineage.step) and len(failed) >= needed:
        what = "none of the run's nodes has passed its check (health.preflight)"
        turn.fail(f"{what}: {unfit(nodes)}; mend the nodes, or change the commands of health.preflight")
    return why


def unfit(nodes: Nodes) -> str:
    """Name the nodes that have failed their check, with the reasons; empty: there are none."""
    failed = sorted(nodes.out(Out.UNFIT))
    more = len(failed) - MOST_NAMED
    named = "; ".join(f"{name}: {nodes.of(name).why}" for name in failed[:MOST_NAMED])
    return f"{named}; and {more} more" if more > 0 else named
