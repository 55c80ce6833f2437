"""The chaos campaign in small: faults from outside on real Slurm, with a fixed seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster import NO_HOSTS

pytestmark = pytest.mark.slurm
CAMPAIGN = Path(__file__).parents[2] / "benchmarks/chaos.py"


TWELVE = {
    "steps": ["rank", "slurmstepd", "slurmctld and rank", "node"],
    "array": ["pilot", "controller's node", "again other", "guard"],
    "standby": ["standby", "two", "srun both", "lighthouse and rank"],
}


@pytest.mark.parametrize("mode", TWELVE)
def test_twelve_faults_of_twelve_kinds_cost_nobody_a_step_and_no_innocent_an_attempt(mode: str, tmp_path: Path) -> None:
    campaign(tmp_path, "--light", f"--modes={mode}", "--once", "--kinds", *TWELVE[mode])


@pytest.mark.nightly
def test_fifty_faults_with_torch_cost_nobody_a_step_and_no_innocent_an_attempt(tmp_path: Path) -> None:
    campaign(tmp_path, "--short", "--parallel=2")


@pytest.mark.nightly
@pytest.mark.skipif(bool(NO_HOSTS), reason=f"hosts with cables of their own need {', '.join(NO_HOSTS)}")
def test_six_faults_of_cables_cost_nobody_a_step(tmp_path: Path) -> None:
    kinds = ("cut", "flapping", "one way", "slow link", "two against two", "another address")
    campaign(tmp_path, "--modes=hosts", "--once", "--kinds", *kinds)


def campaign(out: Path, *words: str) -> None:
    command = [sys.executable, str(CAMPAIGN), "--seed=1", f"--out={out}", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
