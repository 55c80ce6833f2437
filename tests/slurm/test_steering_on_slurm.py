"""`ftslurm restart`, `drain` and their kin on a real Slurm, in one allocation and in array mode."""

from __future__ import annotations

import pytest
from harness import Backend, Run

pytestmark = pytest.mark.slurm
OPEN = {"open-end": True, "step-time": 0.1}


def node_of(run: Run, group: int, attempt: int) -> str:
    (launched,) = run.named("step_launched", group=group, attempt=attempt)
    (node,) = launched["nodes"]  # type: ignore[misc]
    return str(node)


def test_drained_nodes_are_left_and_the_training_goes_on(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", "cluster.spare_nodes=1", "groups.gpus=0", "restart.max_per_group=0", args=OPEN)
    run.wait_for_steps(5, 2)
    first, second = node_of(run, 0, 0), node_of(run, 1, 0)
    assert run.ask("drain", "nowhere")[0] == 1
    code, said = run.ask("drain", second)
    assert (code, said) == (0, f"drain: {second} gets nothing any more; group 1 moves\n")
    run.wait_until_back(1)
    assert node_of(run, 1, 1) not in (first, second)
    code, said = run.ask("status", "--once")
    assert f"drained: {second}" in said
    code, said = run.ask("undrain", second)
    assert (code, said) == (0, f"undrain: {second} is used again\n")
    code, said = run.ask("drain", first)  # the Lighthouse and group 0; the controller stays
    assert "the Lighthouse moves; group 0 moves; the controller itself stays" in said
    run.wait_until_back(0)
    assert node_of(run, 0, 1) == second
    leaders = run.kill_controller()
    run.until(lambda: len(run.named("run_started")) > leaders, "another controller leads")
    run.wait_for("step_adopted", group=0)
    run.wait_for("step_adopted", group=1)
    code, said = run.ask("drain", first)
    assert (code, said) == (1, f"ftslurm: drain refused: {first} is drained already\n")
    code, said = run.ask("restart", "--group", "1")
    assert code == 0
    run.wait_until_back(1, attempt=2)
    last = run.end_soon()
    run.finish()
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"requested", "ok"}
    assert {int(s["step"]) for group in (0, 1) for s in run.steps(group)} == set(range(1, last + 1))
    assert len(set(run.weights().values())) == 1


def test_in_array_mode_a_drained_node_is_left_for_a_new_job(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", "cluster.mode=array", "groups.gpus=0", "restart.max_per_group=0", args=OPEN)
    run.wait_for_steps(5, 2)
    node = node_of(run, 1, 0)
    code, said = run.ask("drain", node)
    assert (code, said) == (
        0,
        f"drain: {node} gets nothing any more; group 1 stays until a node is free, for which a job is asked\n",
    )
    run.wait_until_back(1)
    assert node_of(run, 1, 1) != node
    assert run.wait_for("allocation_lost")["reason"] == f"{node} is drained"
    run.end_soon()
    run.finish()
    assert [e["cause"] for e in run.named("step_exited", group=1)] == ["requested", "ok"]
    assert len(set(run.weights().values())) == 1
