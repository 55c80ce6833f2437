"""Checks of nodes before groups are placed there, on a real Slurm (health.preflight)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Backend

pytestmark = pytest.mark.slurm

CHECK = """#!/bin/sh
echo "looking at $FTSLURM_NODE in $FTSLURM_RUN_DIR, its clock is ahead by $FTSLURM_PREFLIGHT_SKEW_S"
case $FTSLURM_NODE in
    n2) echo "GPU 3 has fallen off the bus"; exit 3 ;;
    n3) sleep 600 & sleep 600 ;;
esac
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "check.sh"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_nodes_that_fail_or_hang_are_left_out_and_groups_run_on_the_others(slurm: Backend, tmp_path: Path) -> None:
    check = program(tmp_path, CHECK)
    settings = [f"health.preflight=[[{check}]]", "health.preflight_timeout_s=4", "cluster.replace=false"]
    settings += ["cluster.spare_nodes=2", "standby.count=1"]
    run = slurm.start("groups.count=2", *settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(3, groups=2)
    assert {e["node"] for e in run.named("node_check_passed")} <= {"n1", "n4"}
    placed = [node for e in run.named("step_launched") if e["unit"] != "lighthouse" for node in e["nodes"]]  # type: ignore[attr-defined]
    assert set(placed) <= {"n1", "n4"}
    failed = {str(e["node"]): e for e in run.named("node_check_failed")}
    assert set(failed) == {"n2", "n3"}
    assert "exit code 3: GPU 3 has fallen off the bus" in str(failed["n2"]["reason"])
    assert "not done after 4 s (health.preflight_timeout_s), killed" in str(failed["n3"]["reason"])
    assert "looking at n2 in" in (run.dir / str(failed["n2"]["log"])).read_text()
    status = run.ask("status")[1]
    assert "left out: n2, n3" in status
    assert "node n2 has failed its check" in status
    assert "fallen off the bus" in json.loads(run.ask("status", "--json")[1])["unfit_nodes"]["n2"]
    run.end_soon()
    run.finish()
    assert "fallen off the bus" in run.text
