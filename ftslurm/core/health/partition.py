"""Find nodes that do not reach each other although the controller reaches both.

No process group says whom it waits for. So when a group has waited for others for WAIT_S and for two steps, the guards
of all nodes of all groups dial each other's admission (guard/admission.py), and report where nothing answers. A pair of
nodes, of two groups or of one, is broken if neither reaches the other. If only one does not, as with a filtered port,
they dial once more first.

The node in most broken pairs is excluded, and its groups move elsewhere. The others then dial it every BACK_S, where
its admission was: its kernel refuses the connection. It is used again once all reach it, or when a user says so
(`ftslurm undrain`): then it is never excluded for this again.

A node whose guard does not answer is a case for node_health.py. If all others find it silent, too, it is lost sooner:
in array mode, where slurmd's port may be closed from the controller's node. Where no group is taken for hung
(health.hang_after_s=0), none of this happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf
from typing import NamedTuple

from ftslurm.core.health.hangs import LOOK_S_PER_GROUP, limits
from ftslurm.core.jobs import supply
from ftslurm.core.state.model import RUNS, Evidence, Out, Phase, Unit, replace
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.words import few

WAIT_S = 2.0  # a shorter disturbance has no consequences
SOON_S = 0.1  # between two looks
LATE_S = 3.0  # an answer takes 1.5 s if something does not answer; one that is later than this is not waited for
AGAIN_S = 30.0  # between two rounds while groups stand still although all nodes are reached
BACK_S = 10.0  # between two rounds while a node is excluded
NEAR = 32  # nodes on either side of a group's, in the order of the groups, that its guards dial


class Spot(NamedTuple):
    """A node of a group that runs: its first task there, whose guard dials and is dialled."""

    unit: Unit
    task: int

    @property
    def address(self) -> tuple[str, int]:
        """Where the others dial it."""
        return self.unit.current.stores[self.task]


Spots = Mapping[str, Spot]  # by node, in the order of the groups


def watch(turn: Turn) -> None:
    """Have groups that stand still dial each other; exclude nodes that others do not reach, and take them back."""
    reached, now = turn.state.reached, turn.now
    off = turn.local or turn.independent or limits(turn.state.standstill, turn.config).in_step_s == inf
    if off or not turn.goes_on or not turn.due(reached.next) or not (running := turn.table.in_phase(Phase.RUNNING)):
        return
    there = _spots(turn)
    waits = list(filter(None, map(_waits, running)))
    soon = min([now + turn.config.heartbeat_s, *(end for _, end in waits if end > now)])
    soon = max(soon, now + SOON_S + LOOK_S_PER_GROUP * len(running))
    turn.set(reached=replace(reached, next=soon))
    turn.due(soon)
    answers, silent = _answers(turn, there), _silent(turn)
    if not there.keys() <= answers.keys() | silent and now < reached.asked + LATE_S:
        return
    stood, cut = [since for since, end in waits if end <= now], turn.nodes.out(Out.CUT)
    again = (stood or cut) and now >= reached.asked + (BACK_S if cut else AGAIN_S)
    since = max([*stood, *(turn.nodes.of(name).dialled for name in silent)], default=reached.asked)
    if again or since > reached.asked:
        _ask(turn, there, repeats=False)
    elif stood:
        _judge(turn, there, answers, min(stood))
    for name in sorted(cut.difference(*answers.values())) if len(answers) == len(there) else ():
        if turn.nodes.of(name).since < reached.asked:
            turn.take_back(name, "all groups reach it again")
            supply.told_to_avoid(turn)


def _spots(turn: Turn) -> Spots:
    running = turn.table.in_phase(Phase.RUNNING)
    found = (Spot(unit, task) for unit in running for task in sorted(unit.current.stores))
    return {str(spot.unit.current.hosts[spot.task]): spot for spot in found}


def _answers(turn: Turn, there: Spots) -> dict[str, frozenset[str]]:
    """Return what each node has answered in the last round: the nodes that it does not reach."""
    known = ((name, unit.current.missed.get(task, (0, frozenset()))) for name, (unit, task) in there.items())
    return {name: nodes for name, (number, nodes) in known if number == turn.state.reached.number}


def _silent(turn: Turn) -> frozenset[str]:
    """Return the nodes that are silent and that only other nodes may dial."""
    return turn.nodes.those(lambda node: node.dialled > 0) if turn.config.job_per_group else frozenset()


def _waits(unit: Unit) -> tuple[float, float] | None:
    """Return since when a group waits for others, and until when that is usual; None: it does not, as far as known."""
    pulse, pace = unit.pulse, unit.current.pace
    if pulse is None or not pulse.stage.waits:
        return None
    return pulse.moved, pulse.moved + max(WAIT_S, 2 * pace.step_s if pace else 0.0)


def _ask(turn: Turn, there: Spots, repeats: bool) -> None:
    """Have each node dial those near it, and the excluded ones."""
    reached = replace(turn.state.reached, number=turn.state.reached.number + 1, asked=turn.now, repeats=repeats)
    nodes = [(name, spot.address) for name, spot in there.items()]
    cut = [(name, address) for name in turn.nodes.out(Out.CUT) if (address := turn.nodes.of(name).address)]
    places = dict[str, list[int]]()
    for i, spot in enumerate(there.values()):
        places.setdefault(spot.unit.name, []).append(i)
    for name, own in places.items():
        span = range(own[0] - NEAR, min(own[-1] + NEAR + 1, own[0] - NEAR + len(nodes)))
        near = dict([*(nodes[i % len(nodes)] for i in span), *sorted(cut)])
        turn.send(turn.table.by_name[name], messages.Reach(reached.number, (*near,), (*near.values(),)))
    turn.set(reached=reached)


def answered(turn: Turn, said: messages.Unreached, unit: Unit) -> None:
    """Fold the answer of a node into the state."""
    turn.attempt(unit, missed=unit.current.missed.set(said.task, (said.number, frozenset(said.nodes))))
    reached, silent = turn.state.reached, _silent(turn)
    turn.set(reached=replace(reached, next=min(reached.next, turn.now + SOON_S)))
    silent &= turn.nodes.those(lambda node: node.dialled <= reached.asked)
    if silent:
        answers = _answers(turn, there := _spots(turn))
        others = answers.keys() - silent
        if others and there.keys() <= others | silent:
            turn.node(*silent.intersection(*(answers[name] for name in others)), no_answer=True)


def _judge(turn: Turn, there: Spots, answers: Mapping[str, Set[str]], since: float) -> None:
    """Exclude the node in most broken pairs; ask again if only one of two nodes does not reach the other."""
    judged = answers.keys() - turn.nodes.those(lambda node: node.trusted)
    missed = {(name, other) for name in judged for other in answers[name] & judged}
    broken = {pair for pair in missed if pair[::-1] in missed}
    if missed and not broken and not turn.state.reached.repeats:
        _ask(turn, there, repeats=True)
    elif broken := broken or missed:
        name = culprit(broken, there)
        others = sorted({node for pair in broken if name in pair for node in pair} - {name})
        sound = sorted(answers.keys() - {node for pair in broken for node in pair})
        *some, one = [f"{node} (group {there[node].unit.group})" for node in (*others, name)]
        why = f"{few(some)} and {one} do not reach each other"
        why += f"; {'all' if some[1:] else 'both'} reach {few(sound)}" if sound else ""
        turn.node(name, out=Out.CUT, since=turn.now, address=there[name].address)
        turn.do(records.NodeExcluded(node=name, reason=why))
        supply.told_to_avoid(turn)
        for unit in turn.table.near(name):
            if unit.phase in RUNS:
                stop(turn, unit, Cause.NETWORK, Evidence(None, name, error=why), died=since)


def culprit(broken: Set[tuple[str, str]], there: Spots) -> str:
    """Return the node to exclude: of most pairs, then the one reached by fewest, without the state, of the last group.

    Of two nodes of one group it is the later one: rank 0 is on the first.

    Args:
        broken: (a, b): a does not reach b, in a broken pair.
        there: the group on each node.
    """

    def key(name: str) -> tuple[int, int, bool, int, int]:
        pairs, (unit, task) = {frozenset(pair) for pair in broken if name in pair}, there[name]
        return len(pairs), sum(name == node for _, node in broken), not unit.joined, unit.group_id, task

    return max(there, key=key)
