"""Tests of the throwaway cluster: if one of these fails, fix it before any other Slurm test."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import cluster as cluster_module
import pytest
from cluster import Cluster, ClusterError, processes_in, scratch

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

STUBBORN = "trap '' TERM; while true; do sleep 0.2; done"


def wait_until(what: str, check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def submit(cluster: Cluster, script: str, *options: str) -> str:
    wrapped = [*options, "--output=/dev/null", "--wrap", script]
    return cluster.run(["sbatch", "--parsable", *wrapped]).strip()


def test_a_step_runs_on_two_nodes_and_sees_the_gpus_of_each(slurm_cluster):
    shown = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    out = slurm_cluster.run(["srun", "-N2", "-n2", "--gres=gpu:4", "sh", "-c", shown])
    assert sorted(out.splitlines()) == ["n1 0,1,2,3", "n2 0,1,2,3"]


def test_a_batch_job_starts_a_step_on_all_its_nodes(slurm_cluster, weird_tmp_path):
    script = weird_tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nsrun --overlap sh -c 'touch done.$SLURMD_NODENAME'\n")
    slurm_cluster.run(["sbatch", "--wait", "-N4", "--output=/dev/null", f"--chdir={weird_tmp_path}", script])
    assert sorted(path.name for path in weird_tmp_path.glob("done.*")) == ["done.n1", "done.n2", "done.n3", "done.n4"]


def test_a_killed_node_loses_its_tasks_at_once_and_comes_back_idle(slurm_cluster):
    submit(slurm_cluster, f'srun sh -c "{STUBBORN}"', "--nodelist=n2,n3", "--no-kill", "--no-requeue")
    # A shell that forks is two for a moment, so they are not counted.
    runs_on = {node: lambda n=node: "sh" in processes_in(slurm_cluster.folder, n).values() for node in ("n2", "n3")}
    wait_until("a task on each node", lambda: all(runs() for runs in runs_on.values()))

    slurm_cluster.kill_node("n3")
    assert runs_on["n2"]()
    assert not processes_in(slurm_cluster.folder, "n3")

    slurm_cluster.clear()
    assert slurm_cluster.states() == dict.fromkeys(["n1", "n2", "n3", "n4"], "idle")
    assert slurm_cluster.run(["srun", "--nodelist=n3", "printenv", "SLURMD_NODENAME"]) == "n3\n"


def test_a_node_that_was_given_up_returns(slurm_cluster):
    slurm_cluster.kill_node("n4")
    slurm_cluster.run(["scontrol", "update", "nodename=n4", "state=down", "reason=test"])
    assert slurm_cluster.states()["n4"].startswith("down")
    slurm_cluster.start_node("n4")
    assert slurm_cluster.states()["n4"] == "idle"


def test_two_clusters_side_by_side_know_nothing_of_each_other(new_cluster):
    small, big = new_cluster(nodes=1, gpus=0), new_cluster(nodes=3, gpus=1)
    submit(big, "sleep 100")
    assert small.run(["squeue", "-h"]) == ""
    assert small.run(["srun", "-n1", "sh", "-c", "echo $SLURM_JOB_ID"]) == "1\n"
    small.stop()
    assert big.states().keys() == {"n1", "n2", "n3"}
    assert big.run(["squeue", "-h", "-o", "%A"]) == "1\n"


def test_stop_leaves_no_process_whatever_the_tasks_do(new_cluster):
    cluster = new_cluster(nodes=2)
    script = f'srun sh -c "setsid sh -c \\"{STUBBORN}\\" & {STUBBORN}" & srun --overlap env -i sh -c "{STUBBORN}"'
    submit(cluster, script, "-N2")
    wait_until("every task runs", lambda: list(cluster.processes().values()).count("sh") == 6)
    cluster.stop()
    assert processes_in(cluster.folder) == {}
    cluster.stop()


def test_an_extra_line_replaces_ours(new_cluster):
    cluster = new_cluster(nodes=1, extra_conf="KillWait=7\nPartitionName=second Nodes=ALL")
    assert "KillWait                = 7 sec" in cluster.run(["scontrol", "show", "config"])
    assert cluster.run(["sinfo", "-h", "-o", "%P"]).split() == ["gpu*", "second"]


def test_a_failed_start_quotes_the_log_and_leaves_nothing(new_cluster, cluster_folder):
    before = processes_in(cluster_folder)
    with pytest.raises(ClusterError, match=r"slurmctld exited with 1\n(.*\n)*--- .*/slurmctld.err\n(.*\n)*.*Nonsense"):
        new_cluster(nodes=1, extra_conf="Nonsense=1")
    assert processes_in(cluster_folder) == before


def test_what_a_killed_session_left_is_removed_by_the_next():
    program = "from cluster import *\nwith scratch() as f: Cluster.start(f / 'c'); print(f, flush=True); input()"
    where = Path(cluster_module.__file__).parent
    session = subprocess.Popen([sys.executable, "-c", program], cwd=where, stdin=PIPE, stdout=PIPE, text=True)
    assert session.stdout
    folder = Path(session.stdout.readline().strip())
    with scratch():
        assert "slurmd" in processes_in(folder).values(), "that session is alive: hands off"
    session.kill()
    session.communicate()
    with scratch():
        assert not processes_in(folder)
        assert not folder.exists()


def test_the_cluster_for_a_shell_explains_itself_and_refuses_what_is_no_program() -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "cluster.py")]
    for word, code in (("--help", 0), ("--no-such", 2), ("no-such-program", 2)):
        done = subprocess.run([*command, word], capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)
        assert "usage:" in done.stdout + done.stderr
