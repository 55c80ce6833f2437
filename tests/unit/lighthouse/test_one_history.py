"""Groups that stall, are cut off and come back at any moment: whoever counts as equal is equal.

Each group votes by itself whether a step is committed, so it may have committed what nobody else has, or a step of
its own in place of theirs. torchft takes equal steps for equal weights. A model of managers plays any such story.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from fuzz import numbers

from ftslurm.lighthouse.quorum import Member, Quorum, Rules
from ftslurm.lighthouse.registry import Book

GROUPS = "abcd"


@dataclass
class Group:
    """A manager of one group, with the commits that its weights are made of."""

    name: str
    commits: tuple[int, ...] = ()
    asks: bool = False
    works_on: int = -1  # the quorum, counted, in which it takes a step now; -1: none

    @property
    def member(self) -> Member:
        return Member(self.name, store_address=f"store-{self.name}", step=len(self.commits))


@dataclass
class World:
    """A Lighthouse and its groups."""

    book: Book
    now: float = 0.0
    issued: int = 0
    groups: dict[str, Group] = field(default_factory=lambda: {name: Group(name) for name in GROUPS})
    live: list[str] = field(default_factory=lambda: [*GROUPS])  # the present attempt of each group
    attempts: list[int] = field(default_factory=lambda: [0] * len(GROUPS))

    def pass_time(self, seconds: float, heard: set[str]) -> None:
        """Let time pass, in which only these groups are heard."""
        for _ in range(max(1, round(seconds))):
            self.now += seconds / max(1, round(seconds))
            for name in heard:
                self.book.beat(name, self.now)
            self.book.set_aside(self.now)
            self.book.prune(self.now)
            if (quorum := self.book.form(self.now)) is not None:
                self.begin(quorum)

    def restart(self, number: int) -> None:
        """Let a group die, and its next attempt begin."""
        self.attempts[number] += 1
        group = Group(f"{GROUPS[number]}{self.attempts[number]}")
        old, self.live[number] = self.live[number], group.name
        self.groups[group.name] = group
        self.groups[old].works_on = -1
        self.book.evict(number, self.attempts[number] - 1, f"store-{old}")
        self.book.announce(number, self.attempts[number], f"store-{group.name}")

    def ask(self, name: str) -> None:
        group = self.groups[name]
        if group.works_on < 0:
            answer = self.book.ask(group.member, self.now)
            group.asks = True
            if isinstance(answer, Quorum):
                self.begin(answer)

    def begin(self, quorum: Quorum) -> None:
        """Let the members of a quorum heal, if they are behind, and begin their step."""
        self.issued += 1
        best = max(m.step for m in quorum.members)
        donors = {self.groups[m.replica_id].commits for m in quorum.members if m.step == best}
        assert len(donors) == 1, f"members count as equal and differ: {donors}"
        (state,) = donors
        for member in quorum.members:
            group = self.groups[member.replica_id]
            group.commits, group.asks, group.works_on = state, False, self.issued

    def end(self, name: str, commits: bool) -> None:
        group = self.groups[name]
        if group.works_on >= 0:
            group.commits += (group.works_on,) * commits
            group.works_on = -1


@pytest.mark.parametrize("seed", numbers(40, 400))
def test_whoever_counts_as_equal_is_equal(seed: int) -> None:
    rng = Random(seed)
    world = World(Book(Rules(rng.randint(1, 2), join_timeout_s=5.0, heartbeat_timeout_s=1.5), 0.0))
    for number, name in enumerate(GROUPS):
        world.book.announce(number, 0, f"store-{name}")
    numbers, deadly = range(len(GROUPS)), rng.choice([0.0, 0.02])
    reached = set(numbers)
    for _ in range(400):
        if rng.random() < 0.1:  # the network changes
            reached = {number for number in numbers if rng.random() < rng.choice([0.3, 0.8, 1.0])}
        if rng.random() < deadly:
            world.restart(rng.choice(numbers))
        heard = {world.live[number] for number in reached}
        for name in rng.sample(sorted(heard), rng.randint(0, len(heard))):
            world.end(name, commits=rng.random() < 0.8)
            if rng.random() < 0.9:
                world.ask(name)
        world.pass_time(rng.choice([0.1, 0.5, 3.0]), heard)
    assert world.issued > 20 or deadly  # all that have the state may die
