"""Record every change of phase that an event or a rule makes, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ftslurm.core import rules
from ftslurm.core.reduce import observe
from ftslurm.core.state.model import Phase
from ftslurm.core.state.turn import Turn

Change = tuple[Phase, Phase]


def record(monkeypatch: pytest.MonkeyPatch) -> set[Change]:
    """Make `decide` record each change of phase; a unit may go through several in one decision."""
    seen: set[Change] = set()

    def noting(step: Callable[..., None]) -> Callable[..., None]:
        def run(turn: Turn, *event: Any) -> None:
            known = {unit.name: unit for unit in turn.state.units}
            step(turn, *event)
            for unit in turn.state.units:
                old = known.get(unit.name, unit)
                if old.phase is not unit.phase:
                    seen.add((old.phase, unit.phase))

        return run

    monkeypatch.setattr(rules, "RULES", tuple(noting(rule) for rule in rules.RULES))
    monkeypatch.setattr(rules, "observe", noting(observe))
    return seen
