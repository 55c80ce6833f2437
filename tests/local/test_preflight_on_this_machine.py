"""Checks of this machine before a local run (health.preflight)."""

from __future__ import annotations

import pytest
from harness import Backend
from quick import ftslurm

pytestmark = pytest.mark.light


def test_this_machine_is_checked_with_the_shipped_check(local: Backend) -> None:
    words = "ftslurm-preflight,--skip,shm,--skip,disk"
    run = local.start("groups.count=2", f"health.preflight=[[{words}]]", args={"steps": 3})
    run.finish()
    assert {e["node"] for e in run.named("node_check_passed")} == {"local0", "local1"}
    logs = [log.read_text() for log in (run.dir / "logs").glob("preflight-*.log")]
    assert ["passed: 1 checks, 0 warnings" in log for log in logs] == [True, True]
    words = "ftslurm-preflight,--skip,matmul,--skip,allreduce,--gpus,99"
    bad = local.start("groups.count=2", f"health.preflight=[[{words}]]", args={"steps": 3})
    bad.finish(1, outcome="failed")
    assert "of the 99 GPUs that the run uses on a node answer" in str(bad.named("run_finished")[0]["reason"])
    refused = ftslurm("run", "cluster=local", "job=ddp", "health.preflight=[[no-such-check]]", cwd=local.tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("no-such-check") == 1
    assert "health.preflight: no-such-check is no program" in refused.stderr.replace("\n", " ")
    typo = local.start("groups.count=2", "health.preflight=[[sh,-c,no-such-check]]", args={"steps": 3})
    typo.finish(1, outcome="failed")
    assert "every group failed before its first step" in str(typo.named("run_finished")[0]["reason"])
    assert "no-such-check" in typo.text
