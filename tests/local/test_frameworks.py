"""Accelerate, transformers and Lightning survive a kill in training, one in an evaluation, and one of all groups.

The groups end with the same weights, optimizer, schedule, callbacks and counters, and have evaluated the same.
"""

from __future__ import annotations

import re

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.config.schema import shipped

EXAMPLES: dict[str, tuple[dict[str, object], list[int]]] = {  # example -> the steps of its evaluations, with two groups
    "train_accelerate.py": ({"epochs": 4, "batch-size": 32}, [8, 16, 24, 32]),
    "train_hf.py": ({"steps": 32, "batch-size": 8}, [8, 16, 24, 32]),
    "train_lightning.py": ({"steps": 32, "batch-size": 32}, [8, 16, 24, 32]),
}
SAID = re.compile(r"^evaluation at step (\d+): (\S+)$", re.MULTILINE)
HELD = re.compile(r"^held (\S+) (\w{64})$", re.MULTILINE)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.parametrize("backend", ["local"], indirect=True),
    pytest.mark.parametrize("example", EXAMPLES),
]


def train(backend: Backend, example: str, kill: str, hold: int, *words: str, **args: object) -> Run:
    """Run an example with two groups to its end; for the kill see scripts/example.py."""
    env = {"EXAMPLE": str(shipped("examples") / example), "KILL": kill, "HOLD": str(hold), "OMP_NUM_THREADS": "1"}
    line = ["groups.count=2", *(f"job.env.{name}={quoted(value)}" for name, value in env.items()), *words]
    return backend.start(*line, script=SCRIPTS / "framework.py", args={**EXAMPLES[example][0], **args}).finish()


def check(run: Run, steps: list[int], groups: int = 2, ranks: int = 1) -> None:
    """Check that all ranks hold the same at the end, and that no two evaluations of a step differ."""
    logs = {
        (group, rank): [path.read_text(errors="replace") for path in sorted(run.dir.glob(pattern))]
        for group in range(groups)
        for rank in range(ranks)
        for pattern in [f"logs/group-{group:04d}/attempt-*/rank-{rank}.log"]
    }
    held = [dict(HELD.findall(texts[-1])) for texts in logs.values()]
    assert held[0]
    assert [event["steps"] for event in run.named("run_finished")] == steps[-1:]  # no step but the committed ones
    assert all(one == held[0] for one in held)
    assert len({*run.weights().values()}) == 1
    said = [SAID.findall(text) for texts in logs.values() for text in texts]
    losses = {(int(step), loss) for found in said for step, loss in found}
    assert sorted(step for step, _ in losses) == steps  # one loss for each
    assert max(len(found) for found in said) == len(steps) or run.named("full_restart")


def test_a_group_that_dies_in_training_heals_to_the_same_state(backend: Backend, example: str) -> None:
    run = train(backend, example, "1 0 11 allreduce", 13)
    assert [event["restarts"] for event in run.named("run_finished")] == [1]
    check(run, EXAMPLES[example][1])


def test_a_group_that_dies_in_an_evaluation_stops_early_with_the_others(backend: Backend, example: str) -> None:
    """With next to no learning rate hardly any evaluation is better than those before it."""
    more = {"epochs": 9} if "epochs" in EXAMPLES[example][0] else {"steps": 99}
    run = train(backend, example, "1 0 -1 allreduce", 20, "job.env.EVALUATION='1 16'", lr="1e-10", **more)
    assert [event["restarts"] for event in run.named("run_finished")] == [1]
    steps = [int(step) for step, _ in SAID.findall(run.rank_log(0))]
    assert steps == list(range(8, 8 * len(steps) + 1, 8))
    assert 4 <= len(steps) < 9  # of the most that there could be
    check(run, steps)


def test_all_groups_go_on_from_a_checkpoint(backend: Backend, example: str) -> None:
    half = int(str(EXAMPLES[example][0]["batch-size"])) // 2  # twice as many workers, as many updates
    words = ("checkpoint.every=8", "groups.workers=2")
    run = train(backend, example, "all 0 21 should_commit", 25, *words, **{"batch-size": half})
    (full,) = run.named("full_restart")
    assert full["checkpoint_step"] == 16
    check(run, EXAMPLES[example][1], ranks=2)
