"""Runs whose groups share a DataLoader by ftslurm.data: every sample once and in order (scripts/samples.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import Backend, Run, quoted
from trained_ids import SIZE, Vote, counted, ids_of, undisturbed


@dataclass
class Training:
    """A training of three groups, perhaps of several runs."""

    local: Backend

    @property
    def out(self) -> str:
        return str(self.local.tmp_path / "ids")

    def start(self, *words: str) -> Run:
        settings = ["groups.count=3", "checkpoint.keep=0", "restart.backoff_s=0", *words]
        return self.local.start(*settings, script="samples.py", args={"out": self.out})

    def resume(self, run: Run, *words: str) -> Run:
        root = f"run.root={quoted(self.local.tmp_path / f'runs{len(self.local.runs)}')}"
        return self.local.launch("resume", str(run.dir), root, "follow=true", *words)

    def lines(self) -> list[dict[str, Any]]:
        files = [path for path in self.local.tmp_path.glob("ids-?") if path.name[-1].isdigit()]
        every = [json.loads(line) for path in files for line in path.read_text().split("\n")[:-1]]
        return sorted(every, key=lambda line: float(line["time"]))

    def last(self) -> int:
        return max((line["committed"][0] for line in self.lines() if "committed" in line), default=0)

    def wait_for_steps(self, run: Run, steps: int) -> None:
        """Wait until so many further steps are committed."""
        first = self.last()
        run.until(lambda: self.last() >= first + steps, f"{steps} steps")

    def save(self, run: Run) -> int:
        """Save a checkpoint; return its step."""
        run.tell("save")
        return int(str(run.wait_for("checkpoint_saved")["step"]))

    def finish(self, run: Run, steps: int) -> None:
        self.wait_for_steps(run, 5)
        part = Path(f"{self.out}-part")
        part.write_text(str(self.last() + steps))
        part.rename(f"{self.out}-end")
        run.finish()

    def history(self) -> list[Vote]:
        """Return what each group gave to each step that was committed and never undone."""
        lines = self.lines()
        number = {name: n for n, name in enumerate(dict.fromkeys(line["history"] for line in lines))}
        votes = [Vote(number[line["history"]], *line["vote"]) for line in lines if "vote" in line]
        committed = {(number[line["history"]], *line["committed"]) for line in lines if "committed" in line}
        return counted(votes, committed, {number[line["history"]]: line["began"] for line in lines if "began" in line})


def kill_in_a_heal(training: Training) -> Run:
    run = training.start("job.env.DIE_IN_HEAL='1'")
    training.wait_for_steps(run, 10)
    run.kill(1)
    run.wait_until_back(1, attempt=2)
    return run


def all_dead_twice(training: Training) -> Run:
    run = training.start()
    training.wait_for_steps(run, 10)
    training.save(run)
    for attempt in (1, 2):
        training.wait_for_steps(run, 15)
        for group in range(3):
            run.kill(group)
        run.until(lambda: len(run.named("full_restart")) == attempt, "a full restart")  # noqa: B023
        run.until(lambda: joined_since_the_restart(run) == {0, 1, 2}, "all are back")
    return run


def joined_since_the_restart(run: Run) -> set[object]:
    """Return the groups; one that died before it had joined has another attempt's number."""
    last = max(int(str(event["seq"])) for event in run.named("full_restart"))
    return {event["group"] for event in run.named("group_joined") if int(str(event["seq"])) > last}


def resumed_with_other_groups_and_batches(training: Training) -> Run:
    run = training.start()
    training.wait_for_steps(run, 10)
    training.save(run)
    training.wait_for_steps(run, 15)
    run.tell("stop")
    run.process.wait(60)
    return training.resume(run, "groups.count=2", "job.args.batch-size=8")


def away_in_a_full_restart(training: Training) -> Run:
    run = training.start("groups.max=3")
    training.wait_for_steps(run, 10)
    saved = training.save(run)
    training.wait_for_steps(run, 15)
    run.tell("scale", "2")
    run.wait_for("step_exited", group=2)
    for group in (0, 1):
        run.kill(group)
    assert run.wait_for("full_restart")["checkpoint_step"] == saved
    run.wait_until_back_at_last(0, 1)
    run.tell("scale", "3")
    run.wait_until_back_at_last(2)
    return run


def death_before_the_commit(training: Training) -> Run:
    run = training.start("job.env.DIE_AT_VOTE='20'")
    run.wait_until_back(1)
    return run


NIGHTLY = (kill_in_a_heal, all_dead_twice, resumed_with_other_groups_and_batches, away_in_a_full_restart)


@pytest.mark.parametrize(
    "fault", [death_before_the_commit, *(pytest.param(fault, marks=pytest.mark.nightly) for fault in NIGHTLY)]
)
def test_every_sample_is_trained_on_once_and_in_order(local: Backend, fault: Callable[[Training], Run]) -> None:
    training = Training(local)
    training.finish(fault(training), 80)
    ids = ids_of(training.history())
    assert len(ids) > 2 * SIZE
    assert ids == undisturbed(len(ids))
