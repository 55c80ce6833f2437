"""Groups of two nodes on a cluster with two leaf switches (topology/tree), whose nodes alternate in Slurm's order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, Run, all_processes

pytestmark = [pytest.mark.slurm, pytest.mark.light]
TREE = "SwitchName=odd Nodes=n[1,3,5]\nSwitchName=even Nodes=n[2,4,6]\nSwitchName=top Switches=odd,even\n"


@pytest.fixture
def tree(new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]) -> Backend:
    return slurm_on(new_cluster(nodes=6, gpus=0, topology=TREE))


def test_a_group_stays_within_its_leaf_switch_also_when_a_spare_node_replaces_one(tree: Backend) -> None:
    size = ("groups.count=2", "groups.nodes=2", "cluster.spare_nodes=2")
    run = tree.start(*size, "cluster.sbatch.switches=2@1:00", args={"open-end": True})
    run.wait_for_steps(2, groups=2)
    launched = [event["nodes"] for event in run.named("step_launched") if event["group"] is not None]
    assert launched == [["n1", "n3"], ["n2", "n4"]]
    show = ["scontrol", "show", "job", str(run.named("run_started")[0]["job_id"])]
    assert "Switches=2@00:01:00" in subprocess.run(show, env=run.environ, capture_output=True, text=True).stdout
    code, said = run.ask("drain", "n4")
    assert code == 0, said
    run.wait_until_back(1)
    (again,) = run.named("step_launched", group=1, attempt=1)
    assert again["nodes"] == ["n2", "n6"]
    run.end_soon()
    run.finish()

    script = tree.script("")
    words = [sys.executable, "-m", "ftslurm", "plan", "cluster=slurm", f"job.script={script}", "groups.gpus=0", *size]
    plan = subprocess.run([*words, "cluster.sbatch.switches=2"], env=run.environ, capture_output=True, text=True)
    assert "#SBATCH --switches=2\n" in plan.stdout, plan.stderr


@pytest.mark.nightly
def test_a_group_across_switches_counts_its_ranks_as_slurm_orders_its_tasks_and_is_adopted(tree: Backend) -> None:
    """Since Slurm 26.05 tasks follow the topology: n1, n3, n2, although SLURM_NODEID and the host list do not."""
    run = tree.start("groups.count=1", "groups.nodes=4", "cluster.spare_nodes=2", args={"open-end": True})
    run.wait_for_steps(3, groups=1)
    (ready,), (launched,) = run.named("step_ready", group=0), run.named("step_launched", group=0)
    hosts = ready.get("hosts") or launched["hosts"]
    assert dict(enumerate(hosts)) == nodes_of_tasks(run, "group-0000/0")  # type: ignore[arg-type]
    run.kill_controller()
    run.wait_for("step_adopted", group=0)
    run.wait_for_steps(len(run.steps(0)) + 8, groups=1)
    run.end_soon()
    run.finish()
    assert len(run.named("step_launched", group=0)) == 1


def nodes_of_tasks(run: Run, step: str) -> dict[int, str]:
    """Return the node of each task of a step, by Slurm's number of the task."""
    marks = {f"FTSLURM_RUN_DIR={run.dir}".encode(), f"FTSLURM_STEP={step}".encode()}
    environs = [
        dict(word.split(b"=", 1) for word in env if b"=" in word) for *_, env in all_processes() if marks < {*env}
    ]
    of_tasks = [env for env in environs if b"SLURM_PROCID" in env]
    return {int(env[b"SLURM_PROCID"]): env[b"SLURMD_NODENAME"].decode() for env in of_tasks}
