"""A run whose directory was removed or moved: no verb finds it, and what it trains is lost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from harness import Backend

PATIENCE_S = 60.0


@pytest.mark.light
@pytest.mark.parametrize("how", ["removed", pytest.param("moved", marks=pytest.mark.nightly)])
def test_the_run_ends_and_says_why(how: str, local: Backend) -> None:
    run = local.start("groups.count=2", args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, 2)
    folder = run.dir
    pids = [run.pid(group) for group in range(2)] + [int((folder / "submitit/job_id").read_text())]
    if how == "moved":
        folder.rename(local.tmp_path / "elsewhere")
    else:
        shutil.rmtree(folder)
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    if how == "moved":
        said = (local.tmp_path / "elsewhere/logs/controller.log").read_text()
        assert f"somebody has removed or moved the run directory {folder}" in said
