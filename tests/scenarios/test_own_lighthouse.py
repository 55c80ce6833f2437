"""Failures with our own Lighthouse, here and on a real Slurm: nobody waits, and its own death costs a pause."""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest
from harness import Backend, Run

OURS = "lighthouse=ftslurm"
# What does not depend on the launcher runs once, to keep the suite short.
ON_SLURM = pytest.mark.parametrize("backend", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)


def longest_gap(run: Run, group: int) -> float:
    times = [s["time"] for s in run.steps(group)]
    return max(b - a for a, b in itertools.pairwise(times))


def lighthouse_process(run: Run) -> int:
    """The Lighthouse itself: the younger of the two, the other is its guard."""
    return max(p for p, line in command_lines(run).items() if b"ftslurm.lighthouse" in line and b"srun" not in line)


def command_lines(run: Run) -> dict[int, bytes]:
    lines = {}
    for pid in run.processes():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                lines[pid] = file.read()
        except OSError:
            continue
    return lines


def test_survivors_do_not_wait_for_the_heartbeat_time_out(backend: Backend) -> None:
    times = ("lighthouse.heartbeat_timeout_ms=30000", "lighthouse.join_timeout_ms=30000")
    run = backend.start("groups.count=3", OURS, *times, args={"steps": 120, "step-time": 0.05})
    run.until(lambda: all(len(run.steps(g)) >= 15 for g in range(3)), "15 steps of all groups")
    run.kill(group=1)
    run.finish()
    run.check_training(120, survivors={0, 2}, returned={1})
    assert longest_gap(run, 0) < 3.0  # measured: step time + 0.04 s
    assert {s["participants"] for s in run.steps(0)} <= {2, 3}  # nobody ever stepped alone


@ON_SLURM
def test_two_of_three_groups_killed_together_leave_the_third_to_go_on_at_once(backend: Backend) -> None:
    times = ("lighthouse.heartbeat_timeout_ms=30000", "lighthouse.join_timeout_ms=30000")
    run = backend.start("groups.count=3", OURS, *times, args={"steps": 150, "step-time": 0.05})
    run.until(lambda: all(len(run.steps(g)) >= 15 for g in range(3)), "15 steps of all groups")
    for pid in [run.pid(0), run.pid(2)]:
        os.kill(pid, signal.SIGKILL)
    run.finish()
    run.check_training(150, survivors={1}, returned={0, 2})
    assert longest_gap(run, 1) < 3.0


def test_the_lighthouse_killed_again_and_again_costs_no_step_and_no_group(backend: Backend) -> None:
    run = backend.start("groups.count=2", OURS, args={"steps": 200, "step-time": 0.05})
    for number in range(4):
        run.until(lambda n=number: len(run.named("step_ready", unit="lighthouse")) == n + 1, "the Lighthouse")
        run.until(lambda n=number: len(run.steps(0)) >= 20 * (n + 1), "some steps")
        os.kill(lighthouse_process(run), signal.SIGKILL)
    run.finish()
    run.check_training(200, survivors={0, 1})
    assert len({e["url"] for e in run.named("step_ready", unit="lighthouse")}) == 1
    assert [e["restarts"] for e in run.named("run_finished")] == [0]
    quorums = [s["quorum"] for s in run.steps(0)]
    assert quorums == sorted(quorums)


@ON_SLURM
def test_a_group_that_dies_while_the_lighthouse_is_away_is_evicted_all_the_same(backend: Backend) -> None:
    times = ("lighthouse.heartbeat_timeout_ms=30000", "lighthouse.join_timeout_ms=30000")
    run = backend.start("groups.count=3", OURS, *times, args={"steps": 150, "step-time": 0.05})
    run.until(lambda: all(len(run.steps(g)) >= 15 for g in range(3)), "15 steps of all groups")
    os.kill(lighthouse_process(run), signal.SIGKILL)
    time.sleep(0.05)
    run.kill(group=2)
    run.finish()
    run.check_training(150, survivors={0, 1}, returned={2})
