"""The state is kept at every decision of random histories, and a controller that has it decides the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import pytest
import test_random_histories
from fuzz import numbers
from histories import Story, awake, flat
from kept_states import check_same, forgotten, through

from ftslurm.core.rules import decide
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.kept import changes, decode, encode, merge
from ftslurm.core.state.model import replace

HISTORIES = 5  # in each block


@dataclass
class Kept(Story):
    """A story in which every state is kept: whole, and as changes since the one before."""

    def __post_init__(self) -> None:
        self.written = self.state
        self.read = decode(through(encode(self.state)))

    def turn(self, now: float, events: Sequence[ev.Event]) -> list[act.Action]:
        state, copy, some = self.state, decode(through(encode(self.state))), flat(events)
        self.read = merge(self.read, through(changes(self.written, state)))
        self.written = state
        known = forgotten(state)
        for read in (copy, self.read):
            check_same(read, known)
            assert read.table.index == state.table.index
            assert read.wakes == -inf, "every rule must look at every unit"
        known = awake(replace(known, table=replace(known.table, index=state.table.index)))
        assert decide(self.read, some, now, self.config) == decide(known, some, now, self.config)
        return super().turn(now, events)


@pytest.mark.parametrize("block", numbers(4, 20))
def test_every_state_of_a_run_is_kept(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_random_histories, "Story", Kept)
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        test_random_histories.live_through(seed)
