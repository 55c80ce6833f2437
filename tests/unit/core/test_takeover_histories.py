"""At random moments of random histories another controller goes on with what is kept, and every invariant holds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import test_random_histories as random_histories
from fuzz import numbers
from histories import Story
from replaced import Replaced

from ftslurm.core.state.model import Phase
from ftslurm.core.state.run_state import RunState

HISTORIES = 10  # in each block


@pytest.mark.parametrize("block", numbers(6, 30))
def test_whoever_leads_decides_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Replaced]()

    def story(config: Any, state: RunState) -> Story:
        made.append(Replaced(config, state, dice=Random(f"replaced {block} {len(made)}")))
        return made[-1]

    monkeypatch.setattr(random_histories, "Story", story)
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        try:
            random_histories.live_through(seed)
        except Exception as error:
            raise AssertionError(f"live_through({seed}): {error!r}") from error
    assert sum(story.replaced for story in made) >= HISTORIES // 2
    assert {unit.phase for story in made for unit in story.state.units} <= set(Phase)
