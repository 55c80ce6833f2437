"""Scripts of five frameworks as people have them, unchanged: what ftslurm runs ends as under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.worker.unhealed import WARNING

SAID = ("evaluation at step", "held")
DEATHS = {  # in the first attempt after so many updates, in the second in a checkpoint
    "accelerate_loop.py": "18 save",
    "fsdp2_compiled.py": "13 save",
    "hf_trainer.py": "18 save",
    "imagenet_main.py": "24 save",
    "lightning_fit.py": "33 save",
}
LIMIT_S = 900  # of a run: a bound for a hang

pytestmark = pytest.mark.nightly
locally = pytest.mark.parametrize("backend", ["local"], indirect=True)
each = pytest.mark.parametrize("script", DEATHS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], set[str]]:
    """Return what torchrun's two ranks say of their evaluations and their end."""

    @cache
    def train(script: str) -> set[str]:
        folder = tmp_path_factory.mktemp("torchrun")
        words = ["--standalone", "--nproc-per-node=2", "--redirects=3", "--log-dir=logs", str(SCRIPTS / "plain.py")]
        command = [sys.executable, "-m", "torch.distributed.run", *words, "--out", str(folder / "group-0")]
        env = os.environ | {"SCRIPT": str(SCRIPTS / "plain" / script), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, check=True, timeout=LIMIT_S, cwd=folder)
        return said(folder.glob("logs/*/attempt_0/*/stdout.log"))

    return train


def train(backend: Backend, script: str, *words: str, deaths: str = "", warns: bool = False) -> Run:
    """Run a script in groups of two ranks, which go on from the script's own checkpoints."""
    env = {"SCRIPT": str(SCRIPTS / "plain" / script), "DEATHS": deaths, "OMP_NUM_THREADS": "1"}
    line = ["groups.workers=2", *(f"job.env.{name}={quoted(value)}" for name, value in env.items()), *words]
    args = {"out": backend.tmp_path / "group-{REPLICA_GROUP_ID}", "resume": True}
    run = backend.start(*line, script="plain.py", args=args)
    run.until(lambda: run.process.poll() is not None, "the end", LIMIT_S)
    return run.finish(warns=warns)


def said(logs: Iterable[Path]) -> set[str]:
    return {line for path in logs for line in path.read_text(errors="replace").splitlines() if line.startswith(SAID)}


def logs(run: Run, group: int = 0) -> Iterable[Path]:
    return run.dir.glob(f"logs/group-{group:04d}/attempt-*/rank-*.log")


@locally
@each
def test_one_group_that_dies_in_training_and_in_a_save_ends_as_under_torchrun(
    backend: Backend, script: str, undisturbed: Callable[[str], set[str]]
) -> None:
    words = ("groups.count=1", "lighthouse=none", "restart.on_state_loss=checkpoint")
    run = train(backend, script, *words, deaths=DEATHS[script])
    assert [event["restarts"] for event in run.named("run_finished")] == [2]
    assert said(logs(run)) == undisturbed(script)
    assert {line.split()[0] for line in undisturbed(script)} == {"evaluation", "held"}


@locally
@each
def test_two_groups_train_apart_each_as_under_torchrun_and_a_warning_tells_it(
    backend: Backend, script: str, undisturbed: Callable[[str], set[str]]
) -> None:
    run = train(backend, script, "groups.count=2", warns=True)
    assert [event["text"] for event in run.named("warning")] == [WARNING]
    assert said(logs(run, 0)) == said(logs(run, 1)) == undisturbed(script)
