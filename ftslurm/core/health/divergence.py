"""Compare the groups: after a committed step all hold the same weights, bit by bit (health.compare_every). Pure.

The same ranks of all groups are compared, each after the same step, as soon as more than half of the groups that train
are equal, or all have reported. Groups that differ from a majority are brought down; they heal from it elsewhere.
Without a majority nobody knows which are wrong: people are told, and nothing is judged until these groups are equal
again, since one that heals meanwhile has the weights of one of them. With `auto` nobody has asked for a comparison, and
groups may differ by the script's design: people are told, and no group is ended. The same holds for buffers, if the
weights are equal (health.buffers). What an attempt has reported counts while it runs, so a group that is back, and a
history that a full restart has undone, are not compared with what was before.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, TypeAlias

from ftslurm.config.schema import AUTO
from ftslurm.core.groups import reports
from ftslurm.core.state import errands
from ftslurm.core.state.actions import DistrustCheckpoints
from ftslurm.core.state.model import Compared, Evidence, Phase, Trait, Unit, replace
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.words import few

KEPT = 8  # steps whose digests are kept for each rank, those that were reported last
NAMED = 8  # groups that a sentence names
BUFFERS = (
    "buffers differ between groups, among those of {}: each group evaluates another model, so early stopping, the best "
    "checkpoint and ReduceLROnPlateau may differ. health.buffers=average makes them equal, ignore accepts them"
)
Tasks: TypeAlias = list[tuple[Unit, int]]  # that of a rank in each of some groups


def compare(turn: Turn, said: messages.Digest, unit: Unit) -> None:
    """Fold the digest of a rank of a group into the state; bring down the groups that differ from the others."""
    if said.rank >= tasks_of(unit, turn.config):
        return  # no rank of it: what is kept must have a bound
    known = turn.state.comparisons
    steps = known.steps.get(said.rank, ())
    old = next((one for one in steps if one.step == said.step), None)
    new = old or Compared(said.step)
    differs = new.differs or any(digest != said.digest for digest, *_ in islice(new.digests.values(), 1))
    digests = new.digests.set((unit.name, unit.attempt), (said.digest, said.task, said.buffers))
    new = replace(new, digests=digests, differs=differs)
    steps = (*steps, new)[-KEPT:] if old is None else tuple(new if one is old else one for one in steps)
    known = replace(known, steps=known.steps.set(said.rank, steps))
    if not new.differs and _all_have_reported(turn, new):
        told = known.told if known.rank != said.rank else frozenset()
        known = replace(known, equal=known.equal.set(said.rank, said.step), told=told)
        if turn.config.health.buffers == "report" and len({buffers for *_, buffers in digests.values()}) > 1:
            known = replace(known, buffers=True)
            reports.warn(turn, None, BUFFERS.format(said.layers))
    turn.set(comparisons=known)
    for one in steps:
        if one.differs and one.step > agreed(turn, said.rank) and turn.goes_on:
            _judge(turn, said.rank, one, _late(turn, one, steps))


def _all_have_reported(turn: Turn, compared: Compared) -> bool:
    if len(compared.digests) < turn.table.count(Trait.JOINED):
        return False
    return all((unit.name, unit.attempt) in compared.digests for unit in turn.having(Trait.JOINED))


def _late(turn: Turn, compared: Compared, steps: tuple[Compared, ...]) -> list[Unit]:
    """Return the groups that may still report the digest of a step, having reported no later one; some never will."""
    if len(steps) == KEPT and compared is steps[0]:
        return []
    heard = {who for one in steps if one.step >= compared.step for who, _ in one.digests.items()}
    return [unit for unit in turn.having(Trait.JOINED) if (unit.name, unit.attempt) not in heard]


def _judge(turn: Turn, rank: int, compared: Compared, late: list[Unit]) -> None:
    """Tell who is wrong among groups that differ, unless that waits for groups which have not reported yet.

    Args:
        turn: the decision.
        rank: the rank that is compared.
        compared: its digests.
        late: the groups that may still report theirs.
    """
    running = [
        (unit, digest, task)
        for (name, attempt), (digest, task, _) in compared.digests.items()
        if (unit := turn.table.by_name.get(name)) and unit.attempt == attempt and unit.phase is Phase.RUNNING
    ]
    told = turn.state.comparisons.told
    in_doubt = {digest for unit, digest, _ in running if (unit.name, unit.attempt) in told}
    alike: dict[str, Tasks] = {}
    for unit, digest, task in running:
        alike.setdefault(digest, []).append((unit, task))
    if len(alike) < 2 or len(in_doubt) > 1:
        return
    most = max(alike.values(), key=len)
    majority = 2 * len(most) > len(running) + len(late)
    differ = [pair for pairs in alike.values() if pairs is not most or not majority for pair in pairs]
    differ.sort(key=lambda pair: pair[0].group_id)
    if majority and turn.config.health.compare_every != AUTO:
        _condemn(turn, rank, compared.step, differ, len(most))
    elif not late:
        told = frozenset((unit.name, unit.attempt) for unit, _, _ in running)
        turn.set(comparisons=replace(turn.state.comparisons, told=told, rank=rank))
        which = f"{len(most)} groups are equal" if majority else "no majority shows which are wrong"
        _tell(turn, rank, compared.step, differ, which)


def agreed(turn: Turn, rank: int) -> int:
    """Return the last step after which a rank was equal in all groups: at first that from which all have started."""
    known = turn.state.comparisons
    return known.equal.get(rank, turn.lineage.resume_step)


def _condemn(turn: Turn, rank: int, step: int, wrong: Tasks, equal: int) -> None:
    """Bring the groups down that differ from the majority."""
    alone = f"weights or optimizer differ from those of {equal} groups, which are equal, after step {step}"
    _write(turn, rank, step, wrong, equal, f"{_named(wrong, rank)}: {alone}")
    for unit, task in wrong:
        sign = Evidence(task, unit.current.hosts[task], error=alone, cause=Cause.DIVERGED)
        turn.attempt(stop(turn, unit, Cause.DIVERGED, sign), agreed=agreed(turn, rank))


def _tell(turn: Turn, rank: int, step: int, differ: Tasks, which: str) -> None:
    """Tell people that groups differ, and what shows which are right."""
    reason = f"after step {step} weights or optimizer differ, and {which}: {_named(differ, rank)}"
    _write(turn, rank, step, differ, 0, reason)
    if turn.config.health.on_divergence == "stop":
        for unit in turn.state.groups:  # one that is down now may have been wrong, too
            after = agreed(turn, rank)
            turn.attempt(unit, agreed=after)  # it may save until it has ended
            errands.add(turn, DistrustCheckpoints(unit.group_id, unit.attempt, after))  # nobody may see that it has
        turn.fail(f"{reason} (health.on_divergence=stop)")


def _write(turn: Turn, rank: int, step: int, differ: Tasks, equal: int, reason: str) -> None:
    groups = tuple(unit.group_id for unit, _ in differ)
    nodes = tuple(str(unit.current.hosts[task]) for unit, task in differ)
    about: dict[str, Any] = {"groups": groups, "nodes": nodes, "equal": equal, "since": agreed(turn, rank)}
    turn.do(records.ReplicasDiffer(step=step, rank=rank, **about, reason=reason))


def _named(differ: Tasks, rank: int) -> str:
    """Return the groups with the nodes of a rank: "group 1 (rank 0 on n2), group 2 (rank 0 on n3)"."""
    named = [f"group {unit.group} (rank {rank} on {unit.current.hosts[task]})" for unit, task in differ]
    return few(named, NAMED)
