"""The options of srun for a run whose workers are in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.model import Place, StepId
from ftslurm.guard.guard import options
from ftslurm.launchers import container, step_command
from ftslurm.launchers.srun import Slurm
from ftslurm.run.directory import RunDir
from ftslurm.security import programs

RUN = RunDir(Path("/runs/ddp-1"))


def config() -> Config:
    made = Config()
    made.job.script, made.cluster.container_image = "/home/ann/code/train.py", "/images/a.sqsh"
    return made


@pytest.fixture(autouse=True)
def _started_in_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/ann"))


def launch(unit: str) -> Launch:
    return Launch(StepId(unit, 0), None if unit == "lighthouse" else 0, Place(("n1",)))


def test_workers_start_in_the_image_and_the_lighthouse_outside_of_it() -> None:
    made = config()
    made.cluster.srun = ["--container-writable"]
    lines = {
        unit: Slurm(made, RUN).start(launch(unit), Path("/logs"))[0].argv
        for unit in ("group-0000", "standby-000", "lighthouse")
    }
    assert not [word for word in lines["lighthouse"] if "container" in word]
    for unit in ("group-0000", "standby-000"):
        line = lines[unit]
        assert {"--container-image=/images/a.sqsh", "--container-workdir=/home/ann", "--container-writable"} < set(line)
        started = line[line.index("python3") :]
        assert started[:4] == programs.module("ftslurm.worker", python=["python3"])
        assert options(started[4:]).log_dir == "/logs"


def test_the_interpreter_is_that_of_the_image() -> None:
    made = config()
    made.job.python = ["nice", "/opt/conda/bin/python"]
    argv = step_command.command(made, launch("group-0000"), Path("/logs"), local=False)
    assert argv[:5] == programs.module("ftslurm.worker", python=made.job.python)


def test_what_the_run_sets_for_the_script_wins_over_the_image() -> None:
    made = config()
    made.job.env, made.job.secrets = {"NCCL_DEBUG": "INFO"}, ["WANDB_API_KEY"]
    (option,) = [word for word in container.options(made, RUN) if word.startswith("--container-env=")]
    assert {"NCCL_DEBUG", "WANDB_API_KEY", "OMP_NUM_THREADS"} < set(option.partition("=")[2].split(","))


def test_each_folder_that_a_worker_needs_is_mounted_once() -> None:
    made = config()
    home = ["/home/ann:/home/ann", "/home/ann/code:/home/ann/code"]
    assert container.mounts(made, RUN) == [*home, "/runs/ddp-1:/runs/ddp-1"]
    made.checkpoint.dir = "/ckpt"
    made.cluster.srun = ["--container-workdir=/workspace"]
    assert not [word for word in container.options(made, RUN) if word.startswith("--container-workdir")]
    assert container.mounts(made, RUN) == ["/ckpt:/ckpt", *home, "/runs/ddp-1:/runs/ddp-1"]


def test_the_users_mounts_come_first() -> None:
    made = config()
    made.cluster.container_mounts = ["/runs", "/set:/home:ro"]
    assert container.mounts(made, RUN) == [
        *("/runs:/runs", "/set:/home:ro", "/home/ann:/home/ann", "/home/ann/code:/home/ann/code"),
        "/runs/ddp-1:/runs/ddp-1",
    ]


def test_the_root_of_the_machine_is_never_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/"))
    code = "/home/ann/code:/home/ann/code"
    assert container.mounts(config(), RUN) == [code, "/runs/ddp-1:/runs/ddp-1"]
