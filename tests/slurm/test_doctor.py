"""`ftslurm doctor` on real clusters: good, badly set, with a node that takes no job, and when doctor is killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from cluster import SITES, Cluster

pytestmark = pytest.mark.slurm

PATIENCE_S = 120.0
DOCTOR = (sys.executable, "-m", "ftslurm", "doctor")


def doctor(cluster: Cluster, root: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*DOCTOR, "--root", root, *words], env=cluster.environ(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.returncode, done.stdout, done.stderr


def complaints(cluster: Cluster, root: Path, *words: str) -> dict[str, str]:
    """Return the level of each check that is not ok."""
    checks = json.loads(doctor(cluster, root, "--json", *words)[1])["checks"]
    return {row["check"]: row["level"] for row in checks if row["level"] != "ok"}


@contextmanager
def in_background(cluster: Cluster, root: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*DOCTOR, "--root", root, *words], env=cluster.environ(), stdout=pipe, stderr=pipe, text=True
    ) as running:
        yield running
        running.kill()


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def jobs(cluster: Cluster) -> list[str]:
    return cluster.run(["squeue", "-h", "-o", "%j %T"]).splitlines()


def test_two_nodes_of_a_good_cluster_are_looked_at_and_nothing_fails(slurm_cluster: Cluster, tmp_path: Path) -> None:
    code, out, err = doctor(slurm_cluster, tmp_path, "--nodes", "n[1-2]")
    assert code == 0, out + err
    for words in (
        "Slurm job",
        "n1: torch ",
        "n2: torchft ",
        "0 fail",
        "its clock is",
    ):
        assert words in out
    if "+cpu" in version("torch"):
        assert f"n1: it has 1 GPU, and torch {version('torch')} is a CPU build" in out
    assert list(tmp_path.iterdir()) == []
    for node in ("n1", "n2"):
        assert f"{node}: a step with the options of a run starts" in out
        assert f"{node}: jobs can be submitted from it" in out
    until(lambda: not jobs(slurm_cluster), "the jobs are gone")


def test_settings_that_hurt_are_found(new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    settings = ("JobRequeue=0", "ReturnToService=0", "MaxStepCount=50", "MinJobAge=2")
    preemption = ("PreemptType=preempt/partition_prio", "PreemptMode=SUSPEND,GANG")
    cluster = new_cluster(nodes=1, extra_conf="\n".join([*settings, *preemption]))
    found = complaints(cluster, tmp_path)
    hurt = {"JobRequeue": "warn", "ReturnToService": "warn", "MinJobAge": "warn", "PreemptMode": "warn"}
    assert hurt.items() | {"limits": "fail"}.items() <= found.items()


def test_a_partition_or_node_that_is_not_there_is_told_with_slurms_words(
    slurm_cluster: Cluster, tmp_path: Path
) -> None:
    code, _, err = doctor(slurm_cluster, tmp_path, "--partition", "gpus")
    assert (code, "gpus not found" in err) == (2, True), err
    code, out, err = doctor(slurm_cluster, tmp_path, "--nodes", "n9")
    assert (code, "fail  job" in out, "n9: srun: error: " in out) == (1, True, True), out + err
    code, _, err = doctor(slurm_cluster, tmp_path, "--nodes", "n[2-1]")
    assert (code, "--nodes n[2-1]: not a range of hosts" in err) == (2, True), err
    assert not jobs(slurm_cluster)


@pytest.mark.nightly
def test_a_job_that_does_not_start_is_named_with_slurms_reason(slurm_cluster: Cluster, tmp_path: Path) -> None:
    slurm_cluster.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=fan"])
    try:
        code, out, err = doctor(slurm_cluster, tmp_path, "--nodes", "n1,n2", "--wait", "12")
    finally:
        slurm_cluster.run(["scontrol", "update", "nodename=n1", "state=resume"])
    assert code == 1, out + err
    assert "n1: its job has not started within 12 s: Slurm job" in out
    assert "waiting for the job on n1" in err
    assert "n2: torch " in out  # the other one is looked at
    until(lambda: not jobs(slurm_cluster), "the job that waited is cancelled")


def test_ctrl_c_cancels_the_job_that_waits(slurm_cluster: Cluster, tmp_path: Path) -> None:
    slurm_cluster.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=fan"])
    try:
        with in_background(slurm_cluster, tmp_path, "--nodes", "n1") as running:
            until(lambda: jobs(slurm_cluster), "its job waits")
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 130
        until(lambda: not jobs(slurm_cluster), "the job is cancelled")
    finally:
        slurm_cluster.run(["scontrol", "update", "nodename=n1", "state=resume"])
    assert list(tmp_path.iterdir()) == []


def test_a_killed_doctor_leaves_no_job(slurm_cluster: Cluster, tmp_path: Path) -> None:
    with in_background(slurm_cluster, tmp_path, "--nodes", "n1") as running:
        until(lambda: any("RUNNING" in job for job in jobs(slurm_cluster)), "its job runs")
        running.kill()
        running.wait(PATIENCE_S)
        until(lambda: not jobs(slurm_cluster), "the job is gone")


def test_a_doctor_killed_in_the_queue_leaves_no_job(slurm_cluster: Cluster, tmp_path: Path) -> None:
    slurm_cluster.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=fan"])
    try:
        with in_background(slurm_cluster, tmp_path, "--nodes", "n1") as running:
            until(lambda: jobs(slurm_cluster), "its job waits")
            running.kill()
            running.wait(PATIENCE_S)
            until(lambda: not jobs(slurm_cluster), "the job is gone")
    finally:
        slurm_cluster.run(["scontrol", "update", "nodename=n1", "state=resume"])


def test_a_step_that_the_site_refuses_and_a_node_without_sbatch_are_found_with_the_sites_words(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    conf = "CliFilterPlugins=cli_filter/lua"
    cluster = new_cluster(nodes=1, files=SITES / "no-sbatch-on-nodes", extra_conf=conf)
    shutil.copy(SITES / "filter-refuses-mem/cli_filter.lua", cluster.folder)
    code, out, err = doctor(cluster, tmp_path)
    assert code == 1, out + err
    found = {line.split()[1]: line for line in out.splitlines() if line.split()[1] in ("step", "sbatch")}
    assert found["step"].startswith("fail")
    assert "Requesting memory by node is not supported. Use --mem-per-cpu." in found["step"]
    assert "set cluster.srun" in found["step"]
    assert found["sbatch"].startswith("warn")
    assert "ERROR: Job submission is not allowed from this host" in found["sbatch"]
    assert "set cluster=slurm" in found["sbatch"]
    _, out, err = doctor(cluster, tmp_path, "--srun=--mem-per-cpu=0")
    assert "a step with the options of a run starts" in out, out + err


def test_a_folder_that_the_node_does_not_share_fails(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """The node has another /tmp of its own: `unshare` gives one to the program."""
    mount = f"mount -t tmpfs none {tmp_path.parent}"
    python = f"unshare --mount --map-root-user sh -c '{mount}; exec \"$@\"' sh {sys.executable}"
    if subprocess.run(["unshare", "--mount", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("this machine gives no mount namespaces to ordinary users")
    code, out, err = doctor(slurm_cluster, tmp_path, "--nodes", "n1", "--python", python)
    assert (code, "is not the folder of this machine" in out) == (1, True), out + err
