"""Checks of this machine before a local run (health.preflight)."""

from __future__ import annotations

from pathlib import Path

from harness import Backend


def test_this_machine_is_checked_once_with_the_shipped_check(tmp_path: Path) -> None:
    local = Backend("local", {"COLUMNS": "200"}, tmp_path)
    words = "ftslurm-preflight,--skip,kernel,--skip,shm,--min-disk-gb,/:0"
    run = local.start("groups.count=2", f"health.preflight=[[{words}]]", args={"steps": 3})
    run.finish()
    assert {e["node"] for e in run.named("node_check_passed")} == {"local0", "local1"}
    (log,) = (run.dir / "logs").glob("preflight-*.log")
    assert "passed: 2 checks, 0 warnings" in log.read_text()
    bad = local.start("groups.count=2", "health.preflight=[[ftslurm-preflight,--gpus,99]]", args={"steps": 3})
    bad.finish(1, outcome="failed")
    assert "of the 99 GPUs that the run uses on a node answer" in str(bad.named("run_finished")[0]["reason"])
    refused = local.start("groups.count=2", "health.preflight=[[no-such-check]]")
    assert refused.process.wait(60) == 2
    assert "health.preflight: no-such-check: no-such-check is no program" in refused.text.replace("\n", " ")
