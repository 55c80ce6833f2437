"""The environment of a run gets another torchft between two attempts: the attempt that has it trains with nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Backend, light, quoted

from ftslurm.worker import patch_fit

ELSEWHERE = "torchft 9.9"


def upgrade(folder: Path) -> Path:
    """Make an interpreter that finds another version of torchft's metadata as soon as `folder/upgraded` exists."""
    (folder / "upgrade/torchft-9.9.dist-info").mkdir(parents=True)
    (folder / "upgrade/torchft-9.9.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchft\nVersion: 9.9\n"
    )
    (folder / "python").write_text(
        f'#!/bin/sh\n[ -e {folder}/upgraded ] && export PYTHONPATH="{folder}/upgrade:$PYTHONPATH"\nexec "$@"\n'
    )
    (folder / "python").chmod(0o700)
    return folder / "upgraded"


@pytest.mark.light
def test_a_group_that_comes_back_with_another_torchft_is_refused_and_the_others_finish(local: Backend) -> None:
    upgraded = upgrade(local.tmp_path)
    python = light().replace("[", f"[{quoted(local.tmp_path / 'python')},", 1)
    run = local.start(python, "groups.count=2", args={"open-end": True})
    run.wait_for_steps(5, groups=2)
    upgraded.touch()
    run.kill(1)
    run.wait_for("group_given_up", group=1)
    steps = run.end_soon()
    run.finish(4, "succeeded")
    (refused,) = run.named("step_exited", cause="other_version")
    here = patch_fit.torchft()
    assert (refused["group"], refused["attempt"]) == (1, 1)
    error = str(refused["error"])
    assert error.startswith(f"group 1 has {ELSEWHERE}")
    assert f"and group 0 {here} on " in error
    assert not [line for line in run.named("script_begun") if (line["group"], line["attempt"]) == (1, 1)]
    assert [line["attempt"] for line in run.named("step_launched", group=1)] == [0, 1]
    assert [line for line in run.text.splitlines() if error in line and "died before its first step" in line]
    assert [line["steps"] for line in run.named("run_finished")] == [steps]
