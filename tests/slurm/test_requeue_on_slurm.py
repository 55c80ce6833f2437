"""A job that requeues itself while Slurm already ends its processes, the one that asks for it among them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import PATIENCE_S, Cluster
from harness import Backend, light
from programs import script

pytestmark = pytest.mark.slurm
ASK = """
import os, signal
from ftslurm.submission.requeue import requeue
signal.signal(signal.SIGTERM, lambda *_: None)  # as in the controller
print("refused:", requeue(os.environ), flush=True)
"""


def test_a_job_whose_scontrol_is_killed_by_the_requeue_it_asked_for_is_requeued(
    slurm_cluster: Cluster, tmp_path: Path
) -> None:
    """Slurm sends SIGTERM to all processes of the job before a slow scontrol has its answer."""
    real = shutil.which("scontrol", path=slurm_cluster.env["PATH"])
    script(tmp_path / "bin/scontrol", f'{real} "$@"; echo $? >> {tmp_path}/scontrol; sleep 60')
    output, job, ask = tmp_path / "output", tmp_path / "job.sh", tmp_path / "ask.py"
    ask.write_text(ASK)
    script(job, f"export PATH={tmp_path}/bin:$PATH\nexec {sys.executable} {ask}")
    slurm_cluster.run(["sbatch", "--requeue", f"--output={output}", "--open-mode=append", job])
    deadline = time.monotonic() + PATIENCE_S
    while "refused:" not in (said := output.read_text() if output.exists() else ""):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    assert (tmp_path / "scontrol").read_text() == "0\n"
    assert "refused: None\n" in said


@pytest.mark.nightly
def test_where_slurm_expedites_requeues_a_lost_node_costs_seconds_and_a_failed_job_is_not_held(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=2, extra_conf="SlurmctldParameters=enable_expedited_requeue")
    release = [int(part) for part in cluster.run(["sbatch", "--version"]).split()[1].split(".")[:2]]
    if release < [25, 11]:
        pytest.skip("Slurm has --requeue=expedite since 25.11")
    settings = ("groups.count=1", "groups.gpus=0", "checkpoint.every=5")
    run = slurm_on(cluster).start(
        *settings, light(), script="light_saving.py", args={"open-end": True, "step-time": 0.1}
    )
    run.wait_for("checkpoint_saved")
    (node,) = run.named("allocation_granted")[0]["nodes"]  # type: ignore[misc]
    cluster.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=test"])
    run.until(lambda: len(run.named("run_started")) == 2, "another start of the job", 30.0)  # 121 s without it
    run.wait_for("checkpoint_restored")
    run.end_soon()
    run.finish()
    failing = slurm_on(cluster).start("groups.count=1", "groups.gpus=0", script=slurm_on(cluster).script("1 / 0"))
    assert failing.process.wait(PATIENCE_S) == 1
    states = ["COMPLETING", "RUNNING"]
    deadline = time.monotonic() + PATIENCE_S
    while {"COMPLETING", "RUNNING"}.intersection(states) and time.monotonic() < deadline:
        states = cluster.run(["squeue", "--noheader", "--states=all", "--format=%T"]).split()
        time.sleep(0.2)
    assert sorted(states) == ["COMPLETED", "FAILED"]
