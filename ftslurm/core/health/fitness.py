"""Decide which nodes are checked (health.preflight), when, and what follows from a result. Pure.

A node is checked when it comes to the run, before anything is placed there, and again after a step has failed on it in
a way that no script causes, or after it was excluded and restored. A node that runs a group or a standby is not
checked: its GPUs are in use.

A node that fails is excluded for the rest of the run, unless a user asks to check it again (`ftslurm undrain`). One on
which the check cannot be started is lost, as any node that a probe does not reach.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.config.schema import Config
from ftslurm.core.health import silence
from ftslurm.core.jobs import supply
from ftslurm.core.state.actions import CheckNodes, NoteBroken
from ftslurm.core.state.events import NodeResult, NodesChecked
from ftslurm.core.state.model import LIVE, Checking, NodeChecks
from ftslurm.core.state.run_state import ALL
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.values import replace
from ftslurm.protocol import records
from ftslurm.words import few

MOST_STEPS = 32  # Slurm steps that check nodes at the same time; with more nodes, each has several
REFUSED_AGAIN_S = 5.0  # a step that Slurm has refused is tried again after this long
_MOST_NAMED = 3


def watch(turn: Turn) -> None:
    """Start the checks that are missing; end the run if nearly all its nodes were checked and none has passed."""
    checks = turn.nodes.checks
    if not turn.config.health.preflight or not turn.goes_on or turn.state.allocation is None:
        return
    due = bool(checks.refused) and turn.due(checks.again)
    if not (due or turn.attends(ALL)):
        return
    where = _where(turn)
    checks = _known(turn, replace(checks, refused=frozenset()) if due else checks, where)
    turn.set_nodes(checks=checks)
    hopeless = _hopeless(checks, turn.config)
    if hopeless is not None:
        turn.fail(hopeless)
        return
    started = _missing(turn, where)
    if started:
        turn.set_nodes(checks=replace(checks, running=(*checks.running, *started)))
        turn.do(records.NodeChecksStarted(nodes=tuple(node for one in started for node in one.nodes)))
        turn.do(*(CheckNodes(one.nodes, one.allocation) for one in started))


def _where(turn: Turn) -> dict[str, str | None]:
    """Return the nodes to check, each with the job that holds it; None: the controller's own allocation."""
    where = dict[str, str | None]()
    last_resort = {node for node, _ in turn.nodes.suspected}
    unusable = (turn.nodes.avoid - last_resort) | turn.nodes.drained
    for allocation in turn.state.allocations():
        for node in allocation.nodes:
            if node not in unusable:
                where.setdefault(node, None if allocation.own else allocation.name)
    return where


def _known(turn: Turn, checks: NodeChecks, where: Mapping[str, str | None]) -> NodeChecks:
    """Return the checks for the nodes that the run has now."""
    passed = checks.passed
    if turn.state.job_pool.polled:  # else the nodes of its jobs are not known yet
        passed = passed.intersection(where)
    unknown = [node for node in where if node not in passed]
    busy = frozenset(node for node in unknown if _is_busy(turn, node))
    passed = passed | busy if busy else passed
    waiting = frozenset(node for node in unknown if node not in busy)
    return replace(
        checks,
        passed=passed,
        waiting=waiting,
        alone=checks.alone & waiting,
        refused=checks.refused & waiting,
        ever_passed=checks.ever_passed or bool(passed),
    )


def _is_busy(turn: Turn, node: str, but: str = "") -> bool:
    """Return whether a group or a standby runs on a node."""
    return any(u.phase in LIVE and not u.is_lighthouse and u.name != but for u in turn.table.near(node))


def _missing(turn: Turn, where: Mapping[str, str | None]) -> list[Checking]:
    """Return the steps to start now: one for each node, or for an equal share of the nodes if they are many."""
    checks = turn.nodes.checks
    asked = {node for one in checks.running for node in one.nodes}
    free = MOST_STEPS - len(checks.running)
    nodes = [node for node in where if node in checks.waiting and node not in asked and node not in checks.refused]
    if not nodes or free <= 0:
        return []
    if turn.local:
        return [Checking(tuple(nodes))]  # all are this machine
    size = -(-len(nodes) // free)
    steps = [Checking((node,), where[node]) for node in nodes if node in checks.alone]
    for allocation in dict.fromkeys(where.values()):
        there = [node for node in nodes if where[node] == allocation and node not in checks.alone]
        steps += [Checking(tuple(there[i : i + size]), allocation) for i in range(0, len(there), size)]
    return steps[:free]


def _hopeless(checks: NodeChecks, config: Config) -> str | None:
    """Return why the run cannot begin; None: a node has passed, or may still."""
    groups = config.groups
    needed = groups.nodes * -(-groups.count // groups.per_node)
    if checks.ever_passed or checks.waiting or len(checks.failed) < needed:
        return None
    what = "none of the run's nodes has passed its check (health.preflight)"
    return f"{what}: {described(checks)}; mend the nodes, or change the commands of health.preflight"


def described(checks: NodeChecks) -> str:
    """Name the nodes that have failed, with the reasons; empty: there are none."""
    failed = [f"{node}: {reason}" for node, reason in checks.failed]
    return few(failed, _MOST_NAMED, between="; ") if failed else ""


def checked(turn: Turn, event: NodesChecked) -> None:
    """Apply the results of a step that has checked nodes."""
    checks = turn.nodes.checks
    turn.set_nodes(checks=replace(checks, running=tuple(one for one in checks.running if one.nodes != event.nodes)))
    results = {result.node: result for result in event.results if result.node in event.nodes}
    for result in results.values():
        if result.reason is None:
            _passed(turn, result)
        else:
            _failed(turn, result)
            turn.do(NoteBroken(result.node, result.reason))
    missing = frozenset(node for node in event.nodes if node not in results)
    if missing:
        _no_result(turn, missing, event)
    if turn.nodes.checks.failed != checks.failed:
        supply.told_to_avoid(turn)


def _passed(turn: Turn, result: NodeResult) -> None:
    checks, node = turn.nodes.checks, result.node
    passed, waiting = checks.passed | {node}, checks.waiting - {node}
    turn.set_nodes(checks=replace(checks, passed=passed, waiting=waiting, ever_passed=True))
    turn.do(records.NodeCheckPassed(node=node, seconds=result.seconds, log=result.log))


def _failed(turn: Turn, result: NodeResult) -> None:
    """Exclude a node for the rest of the run."""
    node, nodes = result.node, turn.nodes
    reason = f"{result.reason}; see {result.log}" if result.log else str(result.reason)
    failed = (*(pair for pair in nodes.checks.failed if pair[0] != node), (node, reason))
    turn.set_nodes(
        avoid=nodes.avoid | {node},
        returning=tuple(back for back in nodes.returning if back.node != node),
        suspected=tuple(pair for pair in nodes.suspected if pair[0] != node),
        checks=replace(nodes.checks, failed=failed, waiting=nodes.checks.waiting - {node}),
    )
    turn.do(records.NodeCheckFailed(node=node, reason=str(result.reason), seconds=result.seconds, log=result.log))


def _no_result(turn: Turn, missing: frozenset[str], event: NodesChecked) -> None:
    """Handle nodes that have not answered: of several, each is tried by itself; a single one is lost or has failed."""
    checks = turn.nodes.checks
    if event.refused:
        turn.set_nodes(checks=replace(checks, refused=checks.refused | missing, again=turn.now + REFUSED_AGAIN_S))
        return
    if len(event.nodes) > 1 and not turn.local:
        turn.set_nodes(checks=replace(checks, alone=checks.alone | missing))
        return
    why = event.error or "the check has ended without a result"
    for node in sorted(missing):
        if event.unreachable:
            silence.exclude(turn, node, f"its check (health.preflight) cannot start: {why}")
        else:
            _failed(turn, NodeResult(node, 0.0, "", why))


def doubt(turn: Turn, unit: str) -> None:
    """Have the nodes checked on which a step has just ended, if that may be due to them and nothing else runs there."""
    known = turn.table.by_name.get(unit)
    if not turn.config.health.preflight or turn.local:
        return  # the other groups work on this machine, too
    if known is None or known.is_lighthouse or not known.exits:
        return
    last = known.exits[-1]
    if known.phase in LIVE or not last.cause.row.telling or not last.launched:
        return
    blamed = last.nodes if last.node is None else (last.node,)
    idle = {node for node in blamed if not _is_busy(turn, node, but=unit)}
    checks = turn.nodes.checks
    turn.set_nodes(checks=replace(checks, passed=checks.passed - idle))


def forgive(turn: Turn, node: str) -> None:
    """Restore a node that has failed its check: `watch` has it checked again."""
    checks = turn.nodes.checks
    failed = tuple(pair for pair in checks.failed if pair[0] != node)
    turn.set_nodes(avoid=turn.nodes.avoid - {node}, checks=replace(checks, failed=failed))
    turn.do(records.NodeRestored(node=node, reason="a user has asked to check it again"))
