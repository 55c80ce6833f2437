"""The examples for Hugging Face's Trainer and Lightning survive a kill and a restart of all groups, on CPUs.

What they write with --samples shows on which data each committed step was trained.
"""

from __future__ import annotations

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.config.schema import shipped

STEPS, KILLED, HELD = 20, 5, 8
KILL_ONE, KILL_ALL = f"1 0 {KILLED} allreduce", f"all 0 {KILLED} should_commit"

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("backend", ["local"], indirect=True)]


def train(backend: Backend, example: str, kill: str | None, *words: str) -> Run:
    """Run an example with two groups to its end; a kill is "GROUP RANK STEP METHOD", see scripts/example.py.

    One run at a time: these libraries take seconds of CPU time to import.
    """
    args = {"steps": STEPS, "batch-size": 8, "samples": backend.tmp_path / f"steps{len(backend.runs)}"}
    line, path = ["groups.count=2", "checkpoint.every=3", "checkpoint.keep=0"], shipped("examples") / example
    if kill is not None:
        line += [f"job.env.EXAMPLE={quoted(path)}", f"job.env.KILL={quoted(kill)}", f'job.env.HOLD="{HELD}"']
        path = SCRIPTS / "example.py"
    return backend.start(*line, *words, script=path, args=args).finish()


def restored(run: Run) -> int:
    """Return the step of the checkpoint from which all groups were restarted."""
    (full,) = run.named("full_restart")
    return int(str(full["checkpoint_step"]))


def history(run: Run, group: int, rank: int = 0) -> dict[int, dict[str, object]]:
    """Return what a rank trained on in each step; what a full restart has undone is replaced."""
    return {int(line["step"]): dict(line) for line in run.steps(group, rank)}


def check_equal_weights(run: Run, groups: int = 2, ranks: int = 1) -> None:
    weights = run.weights()
    assert set(weights) == {(group, rank) for group in range(groups) for rank in range(ranks)}, run.text
    assert len(set(weights.values())) == 1


def check_every_batch_once(run: Run) -> int:
    """Check that the history has every batch once, in order; return their number."""
    groups = [history(run, group) for group in (0, 1)]
    total = 0
    for step in range(1, STEPS + 1):
        lines = [steps[step] for steps in groups if step in steps]
        (committed,) = {line["committed"] for line in lines}
        assert sorted(batch for line in lines for batch in line["batches"]) == list(range(total, committed))  # type: ignore
        total = int(str(committed))
    return total


def check_own_examples(run: Run, group: int, rank: int = 0, ranks: int = 1) -> list[int]:
    """Check that a rank has every example of its share at most once, in order; return its steps."""
    numbers = [number for line in history(run, group, rank).values() for number in line["examples"]]  # type: ignore[attr-defined]
    share = order()[group * ranks + rank :: 2 * ranks]
    assert numbers == share[: len(numbers)]
    return sorted(history(run, group, rank))


def order() -> list[int]:
    """Return the order of all examples of train_lightning.py."""
    import torch

    return torch.randperm(4096, generator=torch.Generator().manual_seed(0)).tolist()


def test_the_trainer_of_hugging_face_survives_kills_and_trains_on_every_batch_once(backend: Backend) -> None:
    killed = train(backend, "train_hf.py", KILL_ONE)
    assert [event["restarts"] for event in killed.named("run_finished")] == [1]
    check_equal_weights(killed)
    assert STEPS < check_every_batch_once(killed) < 2 * STEPS

    everybody = train(backend, "train_hf.py", KILL_ALL)
    assert restored(everybody) == 3
    check_equal_weights(everybody)
    assert check_every_batch_once(everybody) == 2 * STEPS

    two_workers = train(backend, "train_hf.py", None, "groups.count=1", "groups.workers=2")
    check_equal_weights(two_workers, groups=1, ranks=2)  # they train on different data, so they have averaged


def test_lightning_survives_kills_and_keeps_the_place_in_its_data(backend: Backend) -> None:
    killed = train(backend, "train_lightning.py", KILL_ONE)
    assert [event["restarts"] for event in killed.named("run_finished")] == [1]
    check_equal_weights(killed)
    assert check_own_examples(killed, 0) == list(range(1, STEPS + 1))
    steps = check_own_examples(killed, 1)  # it goes on behind the last batch that it committed
    assert steps[:KILLED] == list(range(1, KILLED + 1))
    assert steps[-1] == STEPS
    assert len(steps) < STEPS

    everybody = train(backend, "train_lightning.py", KILL_ALL, "groups.workers=2")
    assert restored(everybody) == 3
    check_equal_weights(everybody, ranks=2)
    for group in (0, 1):
        for rank in (0, 1):
            assert check_own_examples(everybody, group, rank, ranks=2) == list(range(1, STEPS + 1))
