"""Settings that the cluster cannot meet are refused before submission; a job that sbatch refuses leaves no trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster import Cluster, processes_in

pytestmark = pytest.mark.slurm

PATIENCE_S = 120.0  # a bound for a hang, not a claim about speed
STRICT = """\
EnforcePartLimits=ALL
PartitionName=short Nodes=ALL MaxTime=10"""


@pytest.fixture(scope="module")
def strict_cluster(cluster_folder: Path) -> Iterator[Cluster]:
    """A cluster of two nodes with 4 CPUs and 2 GPUs each, and partitions with limits."""
    cluster = Cluster.start(cluster_folder / "strict", nodes=2, gpus=2, extra_conf=STRICT)
    cluster.run(["scontrol", "update", "nodename=n[1-2]", "availablefeatures=fast,h100"])
    yield cluster
    cluster.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def ftslurm(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ftslurm", *words, "job.script=train.py"]
    return subprocess.run(
        command,
        cwd=folder,
        env=cluster.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def nothing_is_there(cluster: Cluster, folder: Path) -> bool:
    """Check that there is no job and no run directory."""
    return cluster.run(["squeue", "--noheader"]) == "" and not list(folder.glob("runs/*"))


REFUSED: list[tuple[tuple[str, ...], list[str]]] = [
    (("groups.count=3",), ["sbatch refused the job", "x groups.nodes + cluster.spare_nodes=3", "gpu* has 2 nodes"]),
    (("groups.nodes=3",), ["sbatch refused the job", "x groups.nodes + cluster.spare_nodes=6", "gpu* has 2 nodes"]),
    (("cluster.spare_nodes=1",), ["sbatch refused the job", "cluster.spare_nodes=3", "gpu* has 2 nodes"]),
    (("groups.gpus=3",), ["sbatch refused the job", "groups.gpus x groups.per_node=3", "gpu:2"]),
    (("groups.gpus=2", "groups.per_node=2"), ["sbatch refused the job", "groups.per_node=4", "gpu:2"]),
    (
        ("groups.workers=5", "groups.gpus=0"),
        ["sbatch refused the job", "groups.workers x groups.cpus_per_worker", "=5; ", "of 4 CPUs"],
    ),
    (("groups.cpus_per_worker=5",), ["sbatch refused the job", "x groups.cpus_per_worker x", "=5; ", "of 4 CPUs"]),
    (("cluster.partition=nope",), ["invalid partition", "cluster.partition=nope", "gpu* has", "short has"]),
    (("cluster.controller=here",), ["cluster.controller=here", "sbatch/steps.sbatch"]),
    (
        ("cluster.partition=short", "cluster.time=11"),
        ["Requested time limit is invalid", "; cluster.time=11; short has ", "time limit 10:00\n"],
    ),
    (
        ("cluster.sbatch.nodelist=n9",),
        ["Invalid node name specified; cluster.sbatch.nodelist=n9; gpu* has 2"],
    ),
    (("cluster.sbatch.exclude=n9",), ["Invalid node name specified; cluster.sbatch.exclude=n9; gpu* has 2"]),
    (
        ("cluster.sbatch.constraint=nope", "cluster.time=5"),
        ["Invalid feature specification; cluster.sbatch.constraint=nope; gpu* has ", "features fast,h100, "],
    ),
    (
        ("cluster.sbatch.reservation=r",),
        ["Requested reservation is invalid; cluster.sbatch.reservation=r; gpu* has"],
    ),
    (
        ("cluster.kind=array", "cluster.sbatch.constraint=nope"),
        [
            "would refuse the jobs for groups: ",
            "Invalid feature specification; cluster.sbatch.constraint=nope; gpu* has ",
        ],
    ),
    (
        ("cluster.kind=array", "groups.mem=999G"),
        [
            "would refuse the jobs for groups: ",
            "node configuration is not available; groups.mem=999G; groups.gpus x groups.per_node=1; ",
            " 8000 MB",
        ],
    ),
    (
        ("cluster.sbatch.segment=1",),  # Slurm knows it since 24.05, and then it is not available here
        ["sbatch refused the job", "unrecognized option", "segment=1"],
    ),
    (("cluster.sbatch.frobnicate=1",), ["sbatch refused the job", "unrecognized option '--frobnicate=1'"]),
    (("cluster.sbatch.mail-type=NOPE",), ["sbatch refused the job", "--mail-type"]),
    (
        ("groups.mem=999G", "cluster.time=5"),
        [
            "sbatch refused the job: allocation failure: Requested node configuration is not available",
            "; groups.mem=999G; ",
            "gpu* has 2 nodes of 4 CPUs, 8000 MB",
        ],
    ),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_this_cluster_cannot_do_is_refused_in_one_paragraph(
    words: tuple[str, ...], says: list[str], strict_cluster: Cluster, folder: Path
) -> None:
    done = ftslurm(strict_cluster, folder, "run", "cluster=slurm", *words)
    assert done.returncode == 2, done
    assert re.fullmatch(r"ftslurm: [^\n]+\n", done.stderr), done.stderr
    assert [part for part in says if part not in done.stderr] == [], done.stderr
    assert done.stdout == ""
    assert nothing_is_there(strict_cluster, folder)


def test_plan_shows_the_sbatch_script_and_submits_nothing(strict_cluster: Cluster, folder: Path) -> None:
    words = ("cluster.partition=short", "cluster.time=5", "groups.workers=2", "cluster.setup=[module load cuda]")
    done = ftslurm(strict_cluster, folder, "plan", "cluster=auto", *words)
    assert (done.returncode, done.stderr) == (0, "ftslurm: Slurm answers: cluster=slurm\n")
    script = [line.strip() for line in done.stdout.splitlines()]
    for line in ("#SBATCH --nodes=2", "#SBATCH --partition=short", "#SBATCH --time=5", "#SBATCH --gpus-per-node=2"):
        assert line in script
    assert script.index(r"eval 'module load cuda") < next(
        n for n, line in enumerate(script) if line.startswith("exec ")
    )
    assert "if node2 died" in done.stdout
    assert nothing_is_there(strict_cluster, folder)
    assert [path.name for path in folder.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGKILL, id="dead"), pytest.param(signal.SIGSTOP, id="frozen", marks=pytest.mark.nightly)],
)
def test_without_its_controller_nothing_is_started_here_instead_and_the_reason_is_told(
    how: signal.Signals, new_cluster: Callable[..., Cluster], folder: Path
) -> None:
    cluster = new_cluster(nodes=1, extra_conf="MessageTimeout=2")
    (slurmctld,) = [pid for pid, name in processes_in(cluster.folder).items() if name == "slurmctld"]
    os.kill(slurmctld, how)

    def ask(verb: str, kind: str) -> subprocess.CompletedProcess[str]:
        return ftslurm(cluster, folder, verb, f"cluster={kind}")

    kinds = ("auto", "auto", "slurm")
    with ThreadPoolExecutor() as pool:  # each waits for ten seconds
        answers = list(pool.map(ask, ("plan", "run", "run"), kinds))
    for kind, done in zip(kinds, answers, strict=True):
        assert done.returncode == 2, done
        said = rf"ftslurm: cluster={kind}, but Slurm does not answer: [^\n]*(sinfo|slurm_)[^\n]+cluster=local [^\n]+\n"
        assert re.fullmatch(said, done.stderr), done.stderr
    assert [path.name for path in folder.iterdir()] == ["train.py"]
