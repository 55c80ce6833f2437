"""The diffs of docs/fault-tolerant.md, applied to their script, make it survive the loss of a group."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import Backend

from ftslurm.checkpoint import layout
from ftslurm.config.schema import shipped

PAGE = Path(__file__).parents[2] / "docs" / "fault-tolerant.md"


def patched(folder: Path) -> Path:
    """Return the plain script with all diffs of the page applied in order."""
    script = folder / "plain_ddp.py"
    shutil.copy(shipped("examples") / script.name, script)
    diffs = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert diffs
    for diff in diffs:
        subprocess.run(["git", "apply", "--whitespace=error", "-"], input=diff, text=True, cwd=folder, check=True)
    return script


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.nightly
def test_the_plain_script_with_the_pages_diffs_survives_a_kill_and_saves(backend: Backend, tmp_path: Path) -> None:
    run = backend.start(
        *("groups.count=2", "groups.workers=2", "standby=one", "job.total_steps=400", "checkpoint.every=100"),
        "faults.plan=[{kind: kill, group: 1, at: 60, rank: 1}]",
        script=patched(tmp_path),
        args={"steps": 400, "width": 64},
    )
    run.wait_until_back(1)
    run.finish()
    assert len(run.named("fault_injected")) == 1
    last = [run.rank_log(group, rank, attempt=group) for group in range(2) for rank in range(2)]
    losses = [re.findall(r"held-out loss (\S+)", log) for log in last]
    assert losses == [losses[0]] * 4, losses  # the same weights everywhere
    assert len(losses[0]) == 1
    assert float(losses[0][0]) < 0.5  # 0.69 untrained
    found = layout.newest(run.dir / "checkpoints")
    assert found is not None
    assert found.step == 400
