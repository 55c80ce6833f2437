"""The lead of an array moves from job to job, whatever Slurm does with a job's processes, and no group restarts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run
from time_limits import changes_of_lead, pauses

pytestmark = [pytest.mark.slurm, pytest.mark.light]
BENCHMARK = Path(__file__).parents[2] / "benchmarks/time_limits.py"
PAUSE_S = 2.0  # most that a planned move may cost on a busy machine; benchmarks/time_limits.py measures it


def leader(run: Run) -> str:
    return str(run.named("run_started")[-1]["job_id"])


def wait_for_leader(run: Run, of: Callable[[str], bool]) -> str:
    """Wait until such a job leads, with its Lighthouse; return it."""

    def leads() -> bool:
        begun = run.named("run_started")[-1]
        up = run.named("step_ready", unit="lighthouse")[-1]
        return of(str(begun["job_id"])) and int(str(up["seq"])) > int(str(begun["seq"]))

    run.until(leads, "another job leads")
    run.wait_for_steps(len(run.steps(2)) + 5, 1)
    return leader(run)


@pytest.mark.parametrize("tracking", ["linuxproc", "pgid"])
def test_the_lead_moves_from_job_to_job_and_costs_no_group_an_attempt(
    tracking: str, new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=5, cpus=1, extra_conf=f"ProctrackType=proctrack/{tracking}")
    run = slurm_on(cluster).start("cluster.kind=array", "groups.count=3", args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, 3)
    first, pilots = leader(run), {str(e["allocation"]) for e in run.named("allocation_granted")}
    submit = ["sbatch", "--parsable", "--nodes=1", "--wrap=sleep 600"]
    others = [cluster.run(submit).strip() for _ in range(2)]

    # Slurm warns of the end of the controller's job, and there is no node for another one: a group's job leads.
    cluster.run(["scancel", "--batch", "--signal=USR2", first])
    second = wait_for_leader(run, lambda job: job in pilots)

    # That job is cancelled without a warning.
    (group,) = (e["group"] for e in run.named("step_launched", allocation=second) if isinstance(e["group"], int))
    cluster.run(["scancel", second])
    run.until(lambda: leader(run) != second, "another job leads")
    cluster.run(["scancel", *others])
    run.wait_until_back(group)

    # There is a node for the controller again.
    wait_for_leader(run, lambda job: "_" not in job)
    last = run.end_soon()
    run.finish()
    assert {e["attempt"] for e in run.named("step_launched") if e["group"] not in (None, group)} == {0}
    assert run.named("node_excluded") + run.named("full_restart") == []
    steps = [step for one in range(3) for step in run.steps(one)]
    assert {int(step["step"]) for step in steps} == set(range(1, last + 1))
    planned, _, *more = pauses(steps, changes_of_lead(run.events))
    assert max(planned, *more) < PAUSE_S


@pytest.mark.nightly
@pytest.mark.parametrize("tracking", ["linuxproc", "pgid"])
def test_four_minutes_of_time_limits_cost_no_step_and_no_restart(tracking: str) -> None:
    command = [sys.executable, str(BENCHMARK), "--minutes=4", f"--tracking={tracking}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["leaders"] >= 4
    assert told["median_s"] < PAUSE_S / 4
