"""sbatch/steps.sbatch by hand: a group on each node, settings as written, and Slurm's warning handled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster
from harness import light
from programs import script
from templates import written

from ftslurm.cli.main import main

TOY = Path(__file__).parents[1] / "scripts/toy.py"
PATIENCE_S = 120.0  # a bound for a hang, not a claim about speed

LOOK = "import json, sys, time\nprint(json.dumps(sys.argv[1:]), flush=True)\ntime.sleep(float(sys.argv[-1]))\n"


@dataclass
class Job:
    """A submitted job and the folder that it was submitted from."""

    cluster: Cluster
    folder: Path
    id: str

    def show(self) -> dict[str, str]:
        """Return slurmctld's record of the job; without accounting it is kept for minutes after the end."""
        words = self.cluster.run(["scontrol", "--oneliner", "show", "job", self.id]).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self) -> tuple[str, str]:
        """Wait for the end; return the state and the exit code."""
        wait_until(lambda: self.show()["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), self)
        shown = self.show()
        return shown["JobState"], shown["ExitCode"]

    @property
    def output(self) -> str:
        path = self.folder / f"ftslurm-{self.id}.out"
        return path.read_text() if path.exists() else ""

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the events of this name in its run."""
        lines = [line for path in self.folder.glob("runs/*/events.jsonl") for line in path.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def log(self, group: int) -> str:
        """Return the log of rank 0 of a group."""
        found = self.folder.glob(f"runs/*/logs/group-{group:04d}/attempt-000/rank-0.log")
        return "".join(path.read_text() for path in found)


def submit(cluster: Cluster, folder: Path, *words: str, options: tuple[str, ...] = (), **environ: str) -> Job:
    command = ["sbatch", "--parsable", *options, str(written() / "steps.sbatch"), *words]
    done = subprocess.run(command, cwd=folder, env=cluster.environ() | environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Job(cluster, folder, done.stdout.strip())


def wait_until(true: Callable[[], object], job: Job) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{job.show()}\n{job.output}"
        time.sleep(0.1)


@pytest.mark.slurm
def test_it_trains_a_group_on_each_node_with_the_python_that_wrote_the_template(
    slurm_cluster: Cluster, weird_tmp_path: Path
) -> None:
    (weird_tmp_path / "toy.py").symlink_to(TOY)
    job = submit(slurm_cluster, weird_tmp_path, "job.script=toy.py", "job.args={steps: 20, step-time: 0.01}")
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    (started,) = job.events("run_started")
    assert (started["job_id"], started["groups"]) == (job.id, 2)
    places = {e["group"]: e["nodes"] for e in job.events("step_launched") if e["group"] is not None}
    assert set(places) == {0, 1}
    assert places[0] != places[1]
    assert [(e["outcome"], e["steps"], e["restarts"]) for e in job.events("run_finished")] == [("succeeded", 20, 0)]
    assert "succeeded" in job.output


@pytest.mark.slurm
def test_settings_reach_the_script_as_written_and_win_over_those_of_the_file(
    slurm_cluster: Cluster, weird_tmp_path: Path
) -> None:
    (weird_tmp_path / "my train.py").write_text(LOOK)
    (weird_tmp_path / "conf/job").mkdir(parents=True)
    (weird_tmp_path / "conf/job/mine.yaml").write_text(
        "# @package _global_\nrun: {name: mine}\njob: {script: my train.py}\n"
    )
    args = """job.args=["two words","it's",'a "quoted" $HOME `x` \\\\n *',0]"""
    words = ("--config-dir", "conf", "job=mine", args, light(), "groups.count=1")
    job = submit(slurm_cluster, weird_tmp_path, *words)
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert job.log(0).splitlines() == [json.dumps(["two words", "it's", 'a "quoted" $HOME `x` \\\\n *', "0"])]
    assert [e["groups"] for e in job.events("run_started")] == [1]


@pytest.mark.slurm
def test_too_few_nodes_are_told_in_the_output_with_what_to_type(slurm_cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ("job.script=train.py", "groups.count=3")
    job = submit(slurm_cluster, tmp_path, *words, options=("--nodes=1",))
    assert job.wait() == ("FAILED", "2:0")
    note, line = job.output.splitlines()
    assert note.startswith("ftslurm: training on CPUs: the allocation shows too few GPUs")
    assert line.startswith("ftslurm: 3 groups of 1 nodes")
    assert "sbatch --nodes=3" in line
    assert "groups.count" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.slurm
def test_a_secret_comes_with_sbatchs_environment_or_the_job_says_it_does_not(
    slurm_cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['MY_TOKEN'][::-1])\n")
    words = (light(), "job.script=train.py", "job.secrets=[MY_TOKEN]")
    job = submit(slurm_cluster, tmp_path, *words, MY_TOKEN="s3cr3t")
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert (job.log(0), job.log(1)) == ("t3rc3s\n", "t3rc3s\n")
    assert "s3cr3t" not in json.dumps(job.show())
    assert "s3cr3t" not in job.output
    job = submit(slurm_cluster, tmp_path, *words)
    assert job.wait() == ("FAILED", "2:0")
    assert job.output.startswith("ftslurm: job.secrets: MY_TOKEN is not set in this environment")


@pytest.mark.slurm
def test_slurms_warning_before_the_time_limit_reaches_the_controller(slurm_cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOK)
    words = (light(), "job.script=train.py", "job.args=[600]", "stop.grace_s=1", "cluster.signal_s=8")
    job = submit(slurm_cluster, tmp_path, *words)
    wait_until(lambda: "600" in job.log(0) and "600" in job.log(1), job)
    slurm_cluster.run(["scancel", "--batch", "--signal=USR2", job.id])  # as --signal=B:USR2@120 does
    assert job.wait()[0] == "FAILED", job.output
    (end,) = job.events("run_finished")
    assert end["outcome"] == "stopped"
    assert "no step was committed in this job" in str(end["reason"])
    assert not slurm_cluster.processes()


@pytest.mark.parametrize("name", ["steps", "array"])
def test_the_script_runs_the_python_that_wrote_it_whatever_its_path_holds(
    name: str, weird_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = weird_tmp_path / "an env's $HOME `x`/bin/python"
    script(python, 'printf "%s\\n" "$0" "$@"')
    monkeypatch.setattr(sys, "executable", str(python))
    assert main(["templates", str(weird_tmp_path / "a/b")]) == 0
    environ = {"SLURM_NNODES": "5", "SLURM_ARRAY_TASK_COUNT": "5", "PATH": os.environ["PATH"]}
    command = ["bash", weird_tmp_path / f"a/b/{name}.sbatch", "a b", "c='d'"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    first, *ours, last, end = done.stdout.splitlines()
    assert (first, last, end) == (str(python), "a b", "c='d'")
    assert {"-m", "ftslurm", "run", "groups.count=5"} <= set(ours)


@pytest.mark.parametrize("there", ["steps.sbatch", "array.sbatch"])
@pytest.mark.parametrize("link", [False, True])
def test_nothing_is_overwritten_and_then_nothing_is_written(
    there: str, link: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if link:
        (tmp_path / there).symlink_to("nowhere")
    else:
        (tmp_path / there).write_text("mine")
    assert main(["templates", str(tmp_path)]) == 2
    assert f"{there} exist already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).is_symlink() or (tmp_path / there).read_text() == "mine"
