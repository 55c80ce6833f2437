"""Drills: planned faults have their step."""

from __future__ import annotations

from typing import Any

import pytest

from ftslurm.config.schema import Config, Fault
from ftslurm.core.groups.fault_drills import step_of


def config(groups: int = 3, nodes: int = 2, workers: int = 2, total_steps: int | None = None, **faults: Any) -> Config:
    made = Config()
    made.groups.count, made.groups.nodes, made.groups.workers = groups, nodes, workers
    made.job.total_steps = total_steps
    for name, value in faults.items():
        setattr(made.faults, name, value)
    return made


@pytest.mark.parametrize(
    ("at", "total_steps", "step"),
    [
        (1, None, 1),
        (50, None, 50),
        (50.5, 100, 51),
        (0.5, 120, 60),
        (0.5, 121, 61),
        (0.07, 100, 7),  # not 8: 0.07 * 100 is 7.000000000000001
        (0.001, 100, 1),
        (0.999, 100, 100),
    ],
)
def test_a_planned_fault_has_its_step(at: float, total_steps: int | None, step: int) -> None:
    fault = Fault(kind="term", group=1, at=at, rank=3)
    assert step_of(fault, config(total_steps=total_steps)) == step
