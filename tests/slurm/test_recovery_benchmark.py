"""benchmarks/recovery.py in small: one kill under ftslurm, and one under a job whose ranks all start again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm
BENCHMARK = Path(__file__).parents[2] / "benchmarks/recovery.py"


@pytest.mark.nightly
def test_a_kill_restarts_the_others_with_torchrun_and_not_with_ftslurm(tmp_path: Path) -> None:
    chosen = ["-n", "1", "--faults", "one", "--arms", "ftslurm-cold", "torchrun"]
    command = [sys.executable, BENCHMARK, *chosen, f"--out={tmp_path}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["arm"], row["fault"]): row for row in json.loads((tmp_path / "recovery.json").read_text())["rows"]}
    bare, ours, plain = rows["bare", "one"], rows["ftslurm-cold", "one"], rows["torchrun", "one"]
    assert not ours["note"] + plain["note"], done.stdout
    assert bare["back_s"] > 0
    assert ours["back_s"] > ours["pause_s"]
    assert plain["pause_s"] > ours["pause_s"]
    assert (ours["restarted"], plain["restarted"]) == (0, 4)
    assert ours["undone"] == 0
    assert 0 <= plain["undone"] <= 25 + 1  # a checkpoint every 25 steps
    assert "| ftslurm-cold | 1 |" in (tmp_path / "recovery.md").read_text()
    assert (tmp_path / "recovery.svg").read_text().startswith("<svg")

    again = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert "bare, one" not in again.stdout  # all are there already
