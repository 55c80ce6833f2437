"""benchmarks/goodput.py in small: one kill under ftslurm and under a job that starts again as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from goodput import ALL, Plan

pytestmark = pytest.mark.slurm
BENCHMARK = Path(__file__).parents[2] / "benchmarks/goodput.py"
CONTENDERS = ("ftslurm-cold", "submitit-requeue")
FLAGS = ("--groups=2", "--mean=12", "--minutes=0.3", "--blocks=1", "--quiet=5", "--seed=4")


@pytest.mark.nightly
def test_a_kill_costs_the_others_nothing_with_ftslurm_and_everybody_steps_without(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARK, *FLAGS, f"--out={tmp_path}", "--contenders", *CONTENDERS]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "goodput-2x12.json").read_text())
    ours, plain = (block["measures"] for block in data["blocks"])
    assert ours, done.stdout
    assert plain, done.stdout
    assert ours["kills"] == plain["kills"] >= 1
    assert ours["undone_steps"] == 0
    assert ours["participation"] < 1.0 == plain["participation"]
    assert plain["longest_pause_s"] > ours["longest_pause_s"]
    assert 0.3 < ours["goodput"] < 1.2
    assert -0.5 < plain["goodput"] < 1.1
    assert data["blocks"][1]["jobs"] >= 1  # the whole job again
    assert data["blocks"][0]["jobs"] == 0  # in the same allocation
    assert "| ftslurm-cold |" in (tmp_path / "goodput-2x12.md").read_text()
    assert (tmp_path / "goodput-2x12.svg").read_text().startswith("<svg")

    again = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert again.stdout.startswith("0 blocks"), again.stdout + again.stderr  # all are there already


def test_the_kills_of_a_seed_are_the_same_for_all_and_others_in_each_block() -> None:
    plan = Plan(groups=4, mean_s=20, minutes=10, blocks=2, quiet_s=30, seed=1, step_s=0.2, checkpoint_every=25)
    first, second = plan.kills(0), plan.kills(1)
    assert first == plan.kills(0) != second
    assert all(0 < at < 300 and replica in range(4) for at, replica in first + second)
    assert 15 < len(first) + len(second) < 50
    assert list(ALL)[:2] == ["ftslurm-cold", "ftslurm-warm"]
