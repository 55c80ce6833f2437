"""Decide which nodes are checked (health.preflight), when, and what follows from a result. Pure.

A node is checked when it comes to the run, before anything is placed there, and again after a step has failed on it in
a way that no script causes, or after it was excluded and restored. A node that runs a group or a standby is not
checked: its GPUs are in use.

A node that fails is excluded for the rest of the run, unless a user asks to check it again (`ftslurm undrain`). One on
which the check cannot be started is lost, as any node that a probe does not reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ftslurm.config.schema import Config
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.health import silence
from ftslurm.core.jobs import supply
from ftslurm.core.state.actions import Action, CheckNodes, NoteBroken
from ftslurm.core.state.events import NodeResult, NodesChecked
from ftslurm.core.state.model import LIVE, Checking, Ending, NodeChecks, RunOutcome
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.values import replace
from ftslurm.protocol import records

MOST_STEPS = 32  # Slurm steps that check nodes at the same time; with more nodes, each has several
REFUSED_AGAIN_S = 5.0  # a step that Slurm has refused is tried again after this long
_MOST_NAMED = 3


def watch(state: RunState, now: float, config: Config) -> Outcome:
    """Start the checks that are missing; end the run if nearly all its nodes were checked and none has passed."""
    checks = state.nodes.checks
    due = bool(checks.refused) and now >= checks.again
    idle = not config.health.preflight or state.ending is not None or state.allocation is None
    if idle or not (due or state.concerns_all):
        return state, []
    where = dict[str, str | None]()
    last_resort = {node for node, _ in state.nodes.suspected}
    unusable = (state.nodes.avoid - last_resort) | state.nodes.drained
    for allocation in state.allocations():
        for node in allocation.nodes:
            if node not in unusable:
                where.setdefault(node, None if allocation.own else allocation.name)
    checks = _known(state, replace(checks, refused=frozenset()) if due else checks, where)
    state = _with_checks(state, checks)
    hopeless = _hopeless(checks, config)
    if hopeless is not None:
        return replace(state, ending=Ending(RunOutcome.FAILED, hopeless)), []
    started = _missing(state, where, config)
    if not started:
        return state, []
    state = _with_checks(state, replace(checks, running=(*checks.running, *started)))
    nodes = tuple(node for one in started for node in one.nodes)
    return state, [records.NodeChecksStarted(nodes=nodes), *(CheckNodes(one.nodes, one.allocation) for one in started)]


def _known(state: RunState, checks: NodeChecks, where: Mapping[str, str | None]) -> NodeChecks:
    """Return the checks for the nodes that the run has now."""
    passed = checks.passed
    if state.job_pool.polled:  # else the nodes of its jobs are not known yet
        passed = passed.intersection(where)
    unknown = [node for node in where if node not in passed]
    busy = frozenset(node for node in unknown if _is_busy(state, node))
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


def _is_busy(state: RunState, node: str, but: str = "") -> bool:
    """Return whether a group or a standby runs on a node."""
    return any(u.phase in LIVE and not u.is_lighthouse and u.name != but for u in state.table.near(node))


def _missing(state: RunState, where: Mapping[str, str | None], config: Config) -> list[Checking]:
    """Return the steps to start now: one for each node, or for an equal share of the nodes if they are many."""
    checks = state.nodes.checks
    asked = {node for one in checks.running for node in one.nodes}
    free = MOST_STEPS - len(checks.running)
    nodes = [node for node in where if node in checks.waiting and node not in asked and node not in checks.refused]
    if not nodes or free <= 0:
        return []
    if config.cluster.kind == "local":
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
    more = len(checks.failed) - _MOST_NAMED
    named = "; ".join(f"{node}: {reason}" for node, reason in checks.failed[:_MOST_NAMED])
    return f"{named}; and {more} more" if more > 0 else named


def checked(state: RunState, event: NodesChecked, now: float, config: Config) -> Outcome:
    """Apply the results of a step that has checked nodes."""
    checks, actions = state.nodes.checks, list[Action]()
    state = _with_checks(
        state, replace(checks, running=tuple(one for one in checks.running if one.nodes != event.nodes))
    )
    failed = state.nodes.checks.failed
    results = {result.node: result for result in event.results if result.node in event.nodes}
    for result in results.values():
        state, more = _failed(state, result) if result.reason is not None else _passed(state, result)
        actions += more
        if result.reason is not None:
            actions.append(NoteBroken(result.node, result.reason))
    missing = frozenset(node for node in event.nodes if node not in results)
    if missing:
        state, more = _no_result(state, missing, event, now, config)
        actions += more
    if state.nodes.checks.failed != failed:
        actions += supply.told_to_avoid(state, config)
    return state, actions


def _passed(state: RunState, result: NodeResult) -> Outcome:
    checks = state.nodes.checks
    passed = replace(
        checks, passed=checks.passed | {result.node}, waiting=checks.waiting - {result.node}, ever_passed=True
    )
    record = records.NodeCheckPassed(node=result.node, seconds=result.seconds, log=result.log)
    return _with_checks(state, passed), [record]


def _failed(state: RunState, result: NodeResult) -> Outcome:
    """Exclude a node for the rest of the run."""
    node, nodes, checks = result.node, state.nodes, state.nodes.checks
    reason = f"{result.reason}; see {result.log}" if result.log else str(result.reason)
    rest = tuple(pair for pair in checks.failed if pair[0] != node)
    checks = replace(checks, failed=(*rest, (node, reason)), waiting=checks.waiting - {node})
    nodes = replace(
        nodes,
        avoid=nodes.avoid | {node},
        returning=tuple(back for back in nodes.returning if back.node != node),
        suspected=tuple(pair for pair in nodes.suspected if pair[0] != node),
        checks=checks,
    )
    record = records.NodeCheckFailed(node=node, reason=str(result.reason), seconds=result.seconds, log=result.log)
    return replace(state, nodes=nodes), [record]


def _no_result(state: RunState, missing: frozenset[str], event: NodesChecked, now: float, config: Config) -> Outcome:
    """Handle nodes that have not answered: of several, each is tried by itself; a single one is lost or has failed."""
    checks = state.nodes.checks
    if event.refused:
        again = replace(checks, refused=checks.refused | missing, again=now + REFUSED_AGAIN_S)
        return _with_checks(state, again), []
    if len(event.nodes) > 1 and config.cluster.kind != "local":
        return _with_checks(state, replace(checks, alone=checks.alone | missing)), []
    why, actions = event.error or "the check has ended without a result", list[Action]()
    for node in sorted(missing):
        if event.unreachable:
            state, more = silence.exclude(state, node, f"its check (health.preflight) cannot start: {why}", now, config)
        else:
            state, more = _failed(state, NodeResult(node, 0.0, "", why))
        actions += more
    return state, actions


def doubt(state: RunState, unit: str, config: Config) -> RunState:
    """Have the nodes checked on which a step has just ended, if that may be due to them and nothing else runs there."""
    known = state.table.by_name.get(unit)
    if not config.health.preflight or config.cluster.kind == "local":
        return state  # the other groups work on this machine, too
    if known is None or known.is_lighthouse or not known.exits:
        return state
    last = known.exits[-1]
    if known.phase in LIVE or not last.cause.row.telling or not last.launched:
        return state
    blamed = last.nodes if last.node is None else (last.node,)
    idle = {node for node in blamed if not _is_busy(state, node, but=unit)}
    checks = state.nodes.checks
    return _with_checks(state, replace(checks, passed=checks.passed - idle))


def forgive(state: RunState, node: str) -> Outcome:
    """Restore a node that has failed its check: `watch` has it checked again."""
    failed = tuple(pair for pair in state.nodes.checks.failed if pair[0] != node)
    nodes = replace(state.nodes, avoid=state.nodes.avoid - {node}, checks=replace(state.nodes.checks, failed=failed))
    return replace(state, nodes=nodes), [records.NodeRestored(node=node, reason="a user has asked to check it again")]


def deadlines(state: RunState) -> Iterator[float]:
    """Yield the time at which `watch` must try a refused step again."""
    if state.ending is None and state.nodes.checks.refused:
        yield state.nodes.checks.again


def _with_checks(state: RunState, checks: NodeChecks) -> RunState:
    if checks == state.nodes.checks:
        return state
    return replace(state, nodes=replace(state.nodes, checks=checks))
