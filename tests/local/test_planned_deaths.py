"""A run survives a crash that nobody has planned; the checks that kill do not."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import false_alarms
import pytest
from harness import Backend, Run


@pytest.mark.light
def test_a_crash_among_planned_kills_is_told_and_the_kills_are_not(tmp_path: Path) -> None:
    run = Backend("local", {}, tmp_path, light=True).start(
        "groups.count=3", "restart.backoff_s=0", args={"open-end": True, "step-time": 0.05}
    )
    try:
        run.wait_for_steps(2, 3)
        run.kill(1)
        run.wait_until_back(1)
        run.kill_lighthouse()
        run.wait_for("step_ready", unit="lighthouse", attempt=1)
        run.check_deaths()
        os.kill(run.pid(2), signal.SIGSEGV)
        run.wait_until_back(2)
        crash = r"planned:\ngroup-0002 attempt 0 ended at step \d+: killed \(SIGSEGV\)[^\n]*$"
        with pytest.raises(AssertionError, match=crash):
            run.check_deaths()
        run.end_soon()
        run.finish()
        with pytest.raises(AssertionError, match=crash):  # nor is the end of the run a death
            run.check_deaths()
    finally:
        run.abandon()


@pytest.mark.nightly
def test_a_campaign_in_which_a_group_crashes_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = false_alarms.until_joined

    def crashes_once(run: Run, times: int) -> None:
        joined(run, times)
        if times == 4:  # after the first planned death
            victims = []
            for pid in run.processes():
                with contextlib.suppress(OSError):
                    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"FTSLURM_STEP=group-0002/0" in environ and b"ftslurm.worker" in line:
                        victims.append(pid)
            os.kill(max(victims), signal.SIGSEGV)
            run.wait_until_back(2)

    monkeypatch.setattr(false_alarms, "until_joined", crashes_once)
    with pytest.raises(AssertionError, match=r"group-0002 attempt 0 ended at step \d+: killed \(SIGSEGV\)"):
        false_alarms.campaign("ddp", 1000, 0.0, tmp_path)
