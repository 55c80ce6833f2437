"""The examples for Hugging Face's Trainer and Lightning survive a kill and a restart of all groups, on CPUs.

What they write with --samples shows on which data each committed step was trained.
"""

from __future__ import annotations

import pytest
from harness import Backend, Run, quoted

from ftslurm.config.schema import shipped

STEPS, KILLED, HELD = 16, 5, 8
KILL_ONE, KILL_ALL = f"1 0 {KILLED} allreduce", f"all 0 {KILLED} should_commit"

pytestmark = pytest.mark.parametrize("backend", ["local"], indirect=True)


def start(backend: Backend, example: str, kill: str, *words: str) -> Run:
    """Start an example with two groups and a kill ("GROUP RANK STEP METHOD", see scripts/example.py)."""
    args = {"steps": STEPS, "batch-size": 8, "samples": backend.tmp_path / f"steps{len(backend.runs)}"}
    line = [f"job.env.EXAMPLE={quoted(shipped('examples') / example)}", f"job.env.KILL={quoted(kill)}"]
    line += [f'job.env.HOLD="{HELD}"', "groups.count=2", "checkpoint.every=3", "checkpoint.keep=0"]
    return backend.start(*line, *words, script="example.py", args=args)


def restored(run: Run) -> int:
    """Return the step of the checkpoint from which all groups were restarted."""
    (full,) = run.named("full_restart")
    return int(str(full["checkpoint_step"]))


def history(run: Run, group: int, rank: int = 0) -> dict[int, dict[str, object]]:
    """Return what a rank trained on in each step; what a full restart has undone is replaced."""
    return {int(line["step"]): dict(line) for line in run.steps(group, rank)}


def check_equal_weights(run: Run, ranks: int = 1) -> None:
    weights = run.weights()
    assert set(weights) == {(group, rank) for group in (0, 1) for rank in range(ranks)}, run.text
    assert len(set(weights.values())) == 1


def check_every_batch_once(run: Run, rank: int = 0) -> int:
    """Check that the history has every batch once, in order; return their number."""
    groups = [history(run, group, rank) for group in (0, 1)]
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


def test_both_survive_the_kill_of_a_group_and_lose_no_data(backend: Backend) -> None:
    hf = start(backend, "train_hf.py", KILL_ONE, "groups.workers=2")
    lightning = start(backend, "train_lightning.py", KILL_ONE)
    for run in (hf, lightning):
        run.finish()
        assert [event["restarts"] for event in run.named("run_finished")] == [1]
    check_equal_weights(hf, ranks=2)
    check_equal_weights(lightning)
    assert STEPS < check_every_batch_once(hf) == check_every_batch_once(hf, rank=1) < 2 * STEPS
    assert check_own_examples(lightning, 0) == list(range(1, STEPS + 1))
    killed = check_own_examples(lightning, 1)  # it goes on behind the last batch that it committed
    assert killed[:KILLED] == list(range(1, KILLED + 1))
    assert killed[-1] == STEPS
    assert len(killed) < STEPS


def test_both_go_on_from_a_checkpoint_when_all_groups_die(backend: Backend) -> None:
    hf = start(backend, "train_hf.py", KILL_ALL)
    lightning = start(backend, "train_lightning.py", KILL_ALL, "groups.workers=2")
    for run in (hf, lightning):
        run.finish()
        assert restored(run) == 3
    check_equal_weights(hf)
    check_equal_weights(lightning, ranks=2)
    assert check_every_batch_once(hf) == 2 * STEPS
    for group in (0, 1):
        for rank in (0, 1):
            assert check_own_examples(lightning, group, rank, ranks=2) == list(range(1, STEPS + 1))
