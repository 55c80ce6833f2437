"""The diffs of docs/fault-tolerant.md, applied to their script, make it survive the loss of a group."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import Backend, quoted

from ftslurm.checkpoint.store import Store
from ftslurm.config.schema import shipped

PAGE = Path(__file__).parents[2] / "docs" / "fault-tolerant.md"


STEPS, LR = 300, 2e-3
TOLD = """\
        if committed:
            print(f"trained {step} {x.sum().item()}", flush=True)
"""


def patched(folder: Path, count: int | None = None) -> Path:
    """Return the plain script with the first diffs of the page, or all, applied in order."""
    script = folder / "plain_ddp.py"
    shutil.copy(shipped("examples") / script.name, script)
    diffs = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(diffs) == 7
    for diff in diffs[:count]:
        subprocess.run(["git", "apply", "--whitespace=error", "-"], input=diff, text=True, cwd=folder, check=True)
    return script


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.nightly
def test_the_plain_script_with_the_pages_diffs_survives_a_kill_and_saves(
    backend: Backend, tmp_path: Path, count: int
) -> None:
    run = backend.start(
        *("groups.count=2", "groups.workers=2", "standby=one", "job.total_steps=400", "checkpoint.every=100"),
        "faults.plan=[{kind: kill, group: 1, at: 60, rank: 1}]",
        script=patched(tmp_path, count),
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
    found = Store(str(run.dir / "checkpoints")).newest()
    assert found is not None
    assert found.step == 400


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.nightly
def test_the_whole_script_keeps_schedule_scale_and_data_when_a_group_dies(backend: Backend, tmp_path: Path) -> None:
    script = patched(tmp_path)
    known = "        committed = manager.current_step() > step\n"
    assert known in script.read_text()
    script.write_text(script.read_text().replace(known, known + TOLD))
    args: dict[str, object] = {"steps": STEPS, "width": 64, "lr": LR}
    run = backend.start(
        *("groups.count=2", "groups.workers=2", "standby=one", "checkpoint.every=100"),
        "faults.plan=[{kind: kill, group: 1, at: 60, rank: 1}]",
        script=script,
        args=args,
    ).finish()
    assert run.named("group_joined", group=1, attempt=1)
    logs = [run.rank_log(group, rank, attempt) for group in range(2) for rank in range(2) for attempt in range(2)]

    told = [(int(step), float(rate)) for step, rate in re.findall(r"step (\d+) \|.* rate (\S+)", "".join(logs))]
    cosine = [(step, LR * (1 + math.cos(math.pi * step / STEPS)) / 2) for step in range(0, STEPS, 20)]
    assert [step for step, _ in sorted(told)] == [step for step, _ in cosine]  # each printed once
    assert [rate for _, rate in sorted(told)] == pytest.approx([rate for _, rate in cosine], rel=1e-2)

    trained = [re.findall(r"trained (\d+) (\S+)", "".join(logs[4 * group : 4 * group + 2])) for group in range(2)]
    batches = {batch for group in trained for _, batch in group}
    assert STEPS < len(batches) == sum(map(len, trained))  # each batch once, over several epochs

    losses = [re.findall(r"^rank . \| held-out loss (\S+)", log, re.MULTILINE) for log in logs]
    (final,) = {loss for found in losses for loss in found}
    assert sum(map(len, losses)) == 4
    assert float(final) < 0.6  # 0.69 untrained

    root = f"run.root={quoted(tmp_path / 'runs1')}"
    words = (f"job.args.steps={STEPS + 20}", "job.args.lr=0", "faults.plan=[]", root, "follow=true")
    again = backend.launch("resume", str(run.dir), *words).finish()
    assert re.findall(r"^rank . \| held-out loss (\S+)", again.rank_log(0), re.MULTILINE) == [final]
