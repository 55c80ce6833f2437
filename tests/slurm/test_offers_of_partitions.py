"""Runs on clusters whose partitions say little: chosen by a plugin, with GPUs that Slurm does not know, in salloc."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run, quoted

from ftslurm.slurm.parse import UNKNOWN
from ftslurm.submission.capabilities import gpus_of_allocation

pytestmark = [pytest.mark.slurm, pytest.mark.light]
ROUTES = """
function slurm_job_submit(d, p, u)
  if d.partition == nil and d.features == "fast" then d.partition = "gpu" end
  return slurm.SUCCESS
end
function slurm_job_modify(d, r, p, u) return slurm.SUCCESS end
"""
# In a mount namespace of its own, a worker's /dev has the device files of four GPUs.
WITH_GPUS = """#!/bin/sh
mount --make-rprivate / && mount --rbind /dev "$0.dev" && mount -t tmpfs tmpfs /dev || exit 1
for file in "$0.dev"/*; do [ -e "/dev/${file##*/}" ] || ln -s "$file" /dev/; done
for name in 0 1 2 3 ctl; do ln -s null /dev/nvidia$name; done
exec "$@"
"""
SHOWS_GPUS = "import os\nprint('GPUS', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"


def ftslurm(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("")
    command = [sys.executable, "-m", "ftslurm", *words, "job.script=train.py"]
    pipe = subprocess.PIPE
    return subprocess.run(
        command, cwd=folder, env=cluster.environ(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


def test_where_a_plugin_chooses_the_partition_sbatch_decides_for_plan_and_run(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=1, extra_conf="PartitionName=cpu Nodes=n1 State=DOWN")
    (cluster.folder / "job_submit.lua").write_text(ROUTES)
    cluster.stop_slurmctld()
    with (cluster.folder / "slurm.conf").open("a") as conf:
        conf.write("JobSubmitPlugins=lua\n")
    cluster.start_slurmctld()
    cluster.run(["scontrol", "update", "partitionname=gpu", "default=no"])
    cluster.run(["scontrol", "update", "nodename=n1", "availablefeatures=fast"])
    size = ("cluster=slurm", "groups.count=1", "cluster.sbatch.constraint=fast")
    for words in (size, (*size, "cluster.kind=array")):
        planned = ftslurm(cluster, tmp_path, "plan", *words)
        assert (planned.returncode, planned.stderr) == (0, ""), planned.stderr
        assert "1 CPU and 1 GPU" in planned.stdout
    assert ftslurm(cluster, tmp_path, "run", *size).returncode == 0
    for verb in ("plan", "run"):
        refused = ftslurm(cluster, tmp_path, verb, "cluster=slurm", "groups.count=1")
        assert refused.returncode == 2
        assert "partition" in refused.stderr
        assert "cluster.partition names one" in refused.stderr, refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("cluster.sbatch.constraint=nope",),
            ("Invalid feature specification", "cluster.sbatch.constraint=nope", "features "),
        ),
        (("groups.mem=999G",), ("is not available", "groups.mem=999G", "8000 MB")),
        (
            ("cluster.sbatch.constraint=nope", "cluster.kind=array"),
            ("would refuse the job", "cluster.sbatch.constraint=nope"),
        ),
        (("cluster.account=me", "groups.gpus=9"), ("groups.gpus", "groups.per_node=9")),
    ],
)
def test_plan_refuses_what_sbatch_would(
    words: tuple[str, ...], says: tuple[str, ...], slurm_cluster: Cluster, tmp_path: Path
) -> None:
    planned = ftslurm(slurm_cluster, tmp_path, "plan", "cluster=slurm", *words)
    assert planned.returncode == 2, planned.stdout
    assert [part for part in says if part not in planned.stderr] == [], planned.stderr
    assert slurm_cluster.run(["squeue", "--noheader"]) == ""


def test_what_never_starts_is_refused_by_run_and_what_waits_for_a_node_is_not(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    small = "PartitionName=small Nodes=ALL MaxNodes=2\nPartitionName=tiny Nodes=n1 DefaultTime=5"
    cluster = new_cluster(nodes=3, extra_conf=small)
    size = ("cluster=slurm", "follow=false")
    never = [  # sbatch accepts each: PartitionNodeLimit is no error unless a site enforces it
        (*size, "groups.count=4"),
        (*size, "groups.count=3", "cluster.partition=small"),
        (*size, "groups.count=2", "cluster.partition=tiny"),
        (*size, "groups.count=1", "groups.nodes=3", "cluster.partition=small", "cluster.kind=array"),
        (*size, "groups.count=3", "cluster.sbatch.partition=small,tiny"),
    ]
    for words in never:
        refused = ftslurm(cluster, tmp_path, "run", *words)
        assert (refused.returncode, "is not available" in refused.stderr) == (2, True), (words, refused.stderr)
    cluster.run(["scontrol", "update", "nodename=n3", "state=drain", "reason=test"])
    for words in never:
        planned, refused = (ftslurm(cluster, tmp_path, verb, *words) for verb in ("plan", "run"))
        assert [one.returncode for one in (planned, refused)] == [2, 2], (words, refused.stderr)
    assert cluster.run(["squeue", "--noheader"]) == ""
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    waits = ftslurm(cluster, tmp_path, "run", *size, "groups.count=3")
    assert waits.returncode == 0, waits.stderr
    reason = cluster.run(["squeue", "--noheader", "--format=%r"])
    assert "ReqNodeNotAvail" in reason or "DRAINED" in reason


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root for a /dev of its own")
@pytest.mark.parametrize("mode", ["slurm", pytest.param("array", marks=pytest.mark.nightly)])
def test_workers_share_the_gpus_of_nodes_of_which_slurm_knows_none(
    mode: str, new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend], tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=2, gpus=0)
    backend = slurm_on(cluster)
    wrapper = backend.script(WITH_GPUS, "with-gpus")
    wrapper.chmod(0o700)
    (tmp_path / "with-gpus.dev").mkdir()
    python = f"job.python=[unshare,--mount,{quoted(wrapper)},{quoted(sys.executable)}]"
    words = ["groups.gpus=2", "groups.per_node=2", python, f"cluster.kind={mode}"]
    words = [word for word in words if mode == "slurm" or "per_node" not in word]
    script = backend.script(SHOWS_GPUS)
    refused = backend.start(*words, script=script)
    assert refused.process.wait(60) == 2
    assert "cluster.sbatch.gpus-per-node=false" in refused.text
    run = backend.start(*words, "cluster.sbatch.gpus-per-node=false", script=script).finish(
        warns="+cpu" in version("torch")
    )
    shares = [re.search(r"GPUS (.*)", run.rank_log(group))[1] for group in (0, 1)]  # type: ignore[index]
    assert shares == (["0,1", "2,3"] if mode == "slurm" else ["0,1", "0,1"])


SALLOC = [
    ("--gpus-per-node=a100", 1),
    ("--gpus-per-node=a100:2,h100:1", 3),
    ("--gpus-per-node=3", 3),
    ("--gpus=8", 4),
    ("--gpus=a100:4", 2),
    ("--gres=gpu:1", 1),
    ("--gres=gpu:h100:2", 2),
    ("--gpus-per-task=2 --ntasks=2", 2),
    ("--exclusive", 4),
    ("--comment=none", 0),
]


def test_a_shell_of_salloc_has_the_gpus_that_slurm_says(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(nodes=2)
    conf, gres, files = cluster.folder / "slurm.conf", cluster.folder / "gres.conf", f"{cluster.folder}/gpus/nvidia"
    cluster.stop_slurmctld()
    for node in cluster.nodes:
        cluster.kill_node(node)
    conf.write_text(conf.read_text().replace("Gres=gpu:4", "Gres=gpu:a100:2,gpu:h100:2"))
    kinds = (("a100", "[0-1]"), ("h100", "[2-3]"))
    gres.write_text("".join(f"NodeName=n[1-2] Name=gpu Type={kind} File={files}{which}\n" for kind, which in kinds))
    cluster.start_slurmctld()
    for node in cluster.nodes:
        cluster.start_node(node)
    ask = "import os; from ftslurm.submission import capabilities as c; print(c.gpus_of_allocation(os.environ))"
    for options, gpus in SALLOC:
        said = cluster.run(["salloc", "--quiet", "--nodes=2", *options.split(), sys.executable, "-c", ask])
        assert said.split()[-1] == str(gpus), options


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({"SLURM_GPUS_PER_NODE": "a100"}, 1),
        ({"SLURM_GPUS_PER_NODE": "a100:2,h100:2"}, 4),
        ({"SLURM_GPUS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "2"}, 2),
        ({"SLURM_GPUS": "8"}, UNKNOWN),
        ({"SLURM_GPUS_PER_NODE": "(null)"}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_where_slurm_does_not_say_the_variables_do_or_it_is_not_known(
    environ: dict[str, str], gpus: float, slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm_cluster.env["SLURM_CONF"])
    assert gpus_of_allocation({"SLURM_JOB_ID": "999999"} | environ) == gpus


# How a process comes to run in a batch job, and whether it is the script's: then the job may be requeued for it.
WAYS = {
    "by name": ("{ask}", True),
    "in a pipeline": ("{ask} | cat", True),
    "in the background": ("{ask} & wait", True),
    "by a wrapper": ("env A=b timeout 60 bash -c '{ask}; true'", True),
    "exec": ("exec {ask}", True),
    "in a terminal": ("script --quiet --return --command '{ask}' /dev/null", False),
    "in a session": ("setsid --wait {ask}", False),
    "in a step": ("srun --overlap --ntasks=1 {ask}", False),
    "in a shell of a step": ("srun --overlap --ntasks=1 bash -c '{ask}; true'", False),
}


@pytest.mark.nightly
def test_only_what_its_batch_script_starts_may_have_a_job_requeued(slurm_cluster: Cluster, tmp_path: Path) -> None:
    ask = tmp_path / "ask"
    code = "import os; from ftslurm.slurm.commands import is_batch; print('batch', is_batch(os.environ))"
    ask.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    ask.chmod(0o700)
    for name, (how, ours) in WAYS.items():
        (tmp_path / "job").write_text(f"#!/bin/bash\n{how.format(ask=ask)}\n")
        slurm_cluster.run(["sbatch", "--wait", f"--output={tmp_path}/out", "--open-mode=truncate", tmp_path / "job"])
        assert f"batch {ours}" in (tmp_path / "out").read_text(), name
    assert "batch False" in slurm_cluster.run(["salloc", "--quiet", ask])


def test_a_job_of_the_users_own_is_not_requeued_for_a_run_in_its_terminal(
    slurm: Backend, slurm_cluster: Cluster
) -> None:
    script = slurm.script("import time\nprint('pid', __import__('os').getpid(), flush=True)\ntime.sleep(600)\n")
    words = (
        f"run cluster=slurm cluster.controller=here run.root=runs0 job.script={script} groups.count=2 stop.grace_s=1"
    )
    line = f"{sys.executable} -m ftslurm {words} checkpoint.every=5 job.snapshot=none standby=none groups.gpus=0"
    job = slurm.script(f"#!/bin/bash\nscript --quiet --return --command '{line}' /dev/null\nsleep 600\n", "job")
    number = slurm_cluster.run(
        ["sbatch", "--parsable", "--nodes=2", f"--output={job}.out", f"--chdir={job.parent}", job]
    )
    root, out = job.parent / "runs0", Path(f"{job}.out")
    run = Run(subprocess.Popen(["sleep", "600"], text=True), out, root, job.parent / "steps", dict(slurm.environ))
    try:
        controller = int(str(run.wait_for("run_started")["pid"]))
        run.pid(0), run.pid(1)
        os.kill(int(Path(f"/proc/{controller}/stat").read_text().split()[3]), signal.SIGUSR2)  # its keeper
        end = run.wait_for("run_finished")
        assert end["outcome"] == "stopped"
        state = slurm_cluster.run(["squeue", "-h", f"--jobs={number.strip()}", "--Format=State,RestartCnt"])
        assert state.split() == ["RUNNING", "0"]
        assert not (run.dir / "submitit/job_id").exists()
    finally:
        run.process.kill()
        run.process.wait()


def test_in_a_job_it_is_told_that_another_one_is_asked_for(slurm_cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    line = f"cd {tmp_path} && {sys.executable} -m ftslurm plan cluster=slurm job.script=train.py groups.count=1 2>&1"
    said = slurm_cluster.run(["salloc", "--quiet", "--nodes=1", "bash", "-c", line])
    assert "this is in Slurm job" in said
    assert "cluster.controller=here" in said
