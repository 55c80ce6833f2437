"""Decides whether there is a quorum and which groups are in it, from the live managers and their requests. Pure.

The rules are torchft's (`quorum_compute` and `_quorum_tick` in src/lighthouse.rs of torchft 0.2.0, "T" below), so
that unmodified managers behave as they do with the stock Lighthouse. Additions are marked "ours", with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf


@dataclass(frozen=True)
class Member:
    """A manager as its request for a quorum describes it (torchft.proto, QuorumMember).

    `step` is the number of steps the manager has committed when it asks (Manager.start_quorum sends its own
    `current_step()`), so a member of step 10 holds the state after ten steps and asks in order to take the eleventh.
    """

    replica_id: str
    address: str = ""
    store_address: str = ""
    step: int = 0
    world_size: int = 1
    shrink_only: bool = False
    commit_failures: int = 0
    data: str = ""
    wire: bytes = field(default=b"", compare=False)  # ours: its message, with fields that only a later torchft knows


@dataclass(eq=False)
class Ask:
    """A request that waits for its quorum. Two requests of one manager are different ones."""

    member: Member
    since: float


@dataclass(frozen=True)
class Quorum:
    """The members that take the next step together, in the order of their ids: every manager derives its rank from it.

    Managers set their process groups up anew when `id` changes, and the id is part of the name under which they meet
    in the store (`torchft/<id>/<rank>`): used twice, it leads them to addresses of processes that are gone.
    """

    id: int
    members: tuple[Member, ...]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The replica ids of its members."""
        return tuple(m.replica_id for m in self.members)


@dataclass(frozen=True)
class Rules:
    """The settings of the Lighthouse, with torchft's names (`LighthouseOpt`); seconds instead of milliseconds."""

    min_replicas: int
    join_timeout_s: float
    heartbeat_timeout_s: float


@dataclass(frozen=True)
class View:
    """All that a decision on a quorum depends on, at one moment."""

    beats: Mapping[str, float]  # replica id -> when it last gave a sign of life
    asking: Mapping[str, Ask]
    last: Quorum | None = None  # the quorum issued last
    gone: Set[str] = frozenset()  # ours: ids whose attempt is over, as the controller has reported, or is set aside
    broken: bool = False  # ours: the last quorum has lost a member that may come back, so its id is used up
    expected: int = 0  # ours: attempts the controller has announced that have not asked yet
    highest: int = 0  # ours: the highest step that any member of an issued quorum had
    over: Set[str] = frozenset()  # ours: those of `gone` that commit nothing any more
    # Ours: of managers that were in a quorum and not in the last one, the lowest step at which others went on without.
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NotYet:
    """There is no quorum, and why. `poisoned`: there would be one, but no member has the state of the training."""

    reason: str
    poisoned: bool = False


def judge(view: View, rules: Rules, now: float, next_id: int) -> Quorum | NotYet:
    """Return the quorum that there is now, or why there is none.

    Args:
        next_id: the id of the quorum if it is not the last one's; higher than any that was ever issued.
    """
    alive = {name for name, beat in view.beats.items() if now - beat < rules.heartbeat_timeout_s} - view.gone
    joined = {name: ask for name, ask in view.asking.items() if name in alive}  # T: healthy_participants
    count = len(alive)
    before = set(view.last.ids) if view.last is not None else set()
    if not _fast(view, before, joined, rules):
        if len(joined) < rules.min_replicas:  # T
            return NotYet(f"{len(joined)} groups ask, {rules.min_replicas} are needed (groups.min)")
        if len(joined) <= count // 2:  # T: "avoid split brain": more than half of the live ones
            return NotYet(f"{len(joined)} groups ask, not more than half of the {count} that are alive")
        if view.last is None:  # ours: the first quorum also waits for groups that have no manager yet
            count = max(count, len(joined) + view.expected)
        first = min((ask.since for ask in joined.values()), default=now)
        if len(joined) != count and now - first < rules.join_timeout_s:  # T: stragglers
            return NotYet(f"{len(joined)} groups ask, waiting for {count - len(joined)} more that are alive")
    members = reunited([joined[name].member for name in sorted(joined)], view.left)
    if view.last is not None and any(m.shrink_only for m in members):
        members = tuple(m for m in members if m.replica_id in before)  # T: groups may leave, none may join
    if not members:
        # Ours: T issues an empty quorum here, again and again, when a new manager asks with shrink_only.
        return NotYet("nobody who asks may be in it (shrink_only)")
    if not any(has_state(m, view.highest) for m in members):
        best = max(m.step for m in members)
        return NotYet(
            f"the run has reached step {view.highest}, those who ask only step {best}: they would start a new history",
            poisoned=True,
        )
    first = min(joined[m.replica_id].since for m in members)
    if (before - view.over).isdisjoint(joined) and before - view.over and now - first < rules.join_timeout_s:  # ours
        return NotYet("nobody of the last quorum asks, and they may have committed its step: waiting for one of them")
    return Quorum(_quorum_id(view, members, next_id), members)


def _fast(view: View, before: set[str], joined: Mapping[str, Ask], rules: Rules) -> bool:
    """Return whether all members of the last quorum ask again, so that other groups are not waited for (T).

    Ours: all of them that are not gone. So after an eviction the survivors continue as soon as they have asked, even
    while the replacement sends heartbeats but still builds its model, for which T waits (up to join_timeout). T does
    not check min_replicas here, as the last quorum had enough members; with some gone it must be checked.
    """
    left = before - view.gone
    if not left or not left <= joined.keys():
        return False
    return left == before or len(joined) >= rules.min_replicas


def reunited(members: Sequence[Member], left: Mapping[str, int]) -> tuple[Member, ...]:
    """Return the members so that they go on with one history (ours).

    A manager votes by itself whether a step is committed. So one that the others went on without may have committed a
    step that they have committed as well, with other gradients, and torchft takes equal steps for equal weights. Its
    step is lowered to where the ways parted: it heals from the others. If those are not beyond that, they heal from it.
    """
    beyond = [m for m in members if m.step > left.get(m.replica_id, inf)]
    if not beyond:
        return tuple(members)
    best = max((m.step for m in members if m not in beyond), default=-1)
    leads = max((m for m in beyond if best <= left[m.replica_id]), key=lambda m: m.step, default=None)
    return tuple(replace(m, step=left[m.replica_id]) if m in beyond and m is not leads else m for m in members)


def has_state(member: Member, highest: int) -> bool:
    """Return whether this member has the state of the training, so that it may continue the history (ours).

    It has reached the highest step, or is one step behind: each group votes on its own whether a step is committed, so
    one may have committed a step that another has not, and then die. A member one step behind must not be at step 0,
    where a fresh group is too that was let in but did not heal.
    """
    return highest == 0 or member.step >= max(1, highest - 1)


def _quorum_id(view: View, members: tuple[Member, ...], next_id: int) -> int:
    """Return the quorum's id: a new one if the members have changed or one of them has failed to commit (T).

    Ours: also if a member was set aside in between. The others have ended their connections of that quorum.
    """
    last = None if view.broken else view.last
    same = last is not None and last.ids == tuple(m.replica_id for m in members)
    if last is not None and same and not any(m.commit_failures > 0 for m in members):
        return last.id
    return next_id
