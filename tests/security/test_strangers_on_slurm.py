"""On a real Slurm the ports of a run are open to other nodes, and so to every user of those nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run
from ports import Answer
from victim import (
    OPTIONS,
    TRAINING,
    Field,
    Stranger,
    begin_training,
    gloo_ports,
    nothing_said,
    own_ports,
    told_once,
    unnoticed,
)

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def own_cluster(network: None, cluster_folder: Path) -> Iterator[Cluster]:
    """A cluster of two nodes in the network of this module."""
    cluster = Cluster.start(cluster_folder / "strangers", nodes=2, gpus=0)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def battlefield(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """A training in an allocation of both nodes."""
    backend = Backend("slurm", own_cluster.env, tmp_path_factory.mktemp("field"))
    yield Field(backend, begin_training)
    for run in backend.runs:
        run.abandon()


def test_on_slurm_no_port_tells_a_stranger_anything(run: Run, stranger: Stranger) -> None:
    gloo, own = gloo_ports(run), sorted(own_ports(run))
    with unnoticed(run):
        answers = [Answer.from_json(fields) for fields in stranger.attack("look", only=own)]
    nothing_said(run, answers, gloo)
    told_once(run)


@pytest.mark.nightly
def test_on_slurm_a_stranger_is_no_donor_and_neither_ends_nor_poisons_the_training(
    run: Run, stranger: Stranger, tmp_path: Path
) -> None:
    loot, own = tmp_path / "loot", sorted(own_ports(run))
    loot.mkdir()
    with unnoticed(run):
        found = stranger.attack("join", step=10**6, folder=str(loot), only=own)
        assert not list(loot.iterdir()), f"code of the stranger ran as the run's owner: {found}"
        assert (found["stores"], found["quorums"], found["received"]) == ({}, [], []), found
        stranger.attack("guess", step=2**62, only=own)
        stranger.attack("say_and_hang_up", step=2**62, only=own)
        stranger.attack("kill", only=own)
    told_once(run)
    steps = run.end_soon()
    run.finish()
    assert {int(run.steps(group)[-1]["step"]) for group in (0, 1)} == {steps}


def test_a_job_does_not_run_what_a_stranger_has_put_in_the_place_of_its_run(
    own_cluster: Cluster, stranger: Stranger, public_path: Path
) -> None:
    """The parent folder became writable by all while the job waited in the queue."""
    root, loot = public_path / "root", public_path / "loot"
    loot.mkdir()
    backend = Backend("slurm", own_cluster.env, root)
    root.mkdir(mode=0o755)
    run = backend.start(*OPTIONS, "cluster.sbatch.hold=true", args=TRAINING)
    run.until(lambda: (run.dir / "submitit" / "job_id").exists(), "the job is submitted")
    job = (run.dir / "submitit" / "job_id").read_text().strip()
    config, directory = (run.dir / "config.yaml").read_text(), run.dir
    run.process.terminate()
    run.process.wait()

    directory.parent.chmod(0o777)
    evil = root / "evil.py"
    evil.write_text(f"import tempfile; tempfile.mkdtemp(prefix='ran-', dir={str(loot)!r})")
    files = {
        "config.yaml": config.replace(str(Path(__file__).parents[1] / "scripts" / "toy.py"), str(evil)),
        "submitit/job_id": job,
        **{f"submitit/{job}_{name}": "PAYLOAD" for name in ("submitted.pkl", "0_submitted.pkl")},
    }
    stranger.attack("plant", run=str(directory), files=files, folder=str(loot), pipes=[])
    own_cluster.run(["scontrol", "release", job])
    try:
        run.until(lambda: over(own_cluster, job), "the job ends", 60.0)
        assert not list(loot.iterdir()), f"code of the stranger ran in the job: {list(loot.iterdir())}"
    finally:
        subprocess.run(["scancel", job], env=own_cluster.environ(), check=False)
        own_cluster.clear()


def over(cluster: Cluster, job: str) -> bool:
    return cluster.run(["squeue", "-h", "-t", "PD,R,CG", "-o", "%A"]).strip() != job
