"""A machine whose own name stands for nothing, as many containers, trains, loses a group and heals it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import SCRIPTS

from ftslurm.run.journal import JournalReader

NAME = "no-such-node-at-all"


@pytest.mark.nightly
@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a machine another name")
def test_a_machine_without_a_name_trains_and_heals(tmp_path: Path) -> None:
    words = ["cluster=local", "groups.count=2", "groups.workers=2", f"run.root={tmp_path}/runs", "follow=true"]
    words += [f"job.script={SCRIPTS}/toy.py", "job.args.steps=200", "job.args.step-time=0.2"]
    words += ["faults.plan=[{kind: kill, group: 1, at: 5}]"]
    command = ["unshare", "-u", "sh", "-c", f'hostname {NAME}; exec "$@"', "sh", sys.executable, "-m", "ftslurm", "run"]
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    joined = [event for event in JournalReader(run / "events.jsonl").iter_new() if event["event"] == "group_joined"]
    assert [event["group"] for event in joined].count(1) == 2
