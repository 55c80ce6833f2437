"""Run directories that are not as others: a name that is no UTF-8, and one that is removed while the run goes on."""

from __future__ import annotations

import os
import shutil

import pytest
from harness import Backend

pytestmark = pytest.mark.light


def test_a_folder_whose_name_is_no_utf8_holds_a_run(local: Backend) -> None:
    root = os.fsdecode(os.fsencode(local.tmp_path) + b"/caf\xe9")
    os.mkdir(root)
    run = local.start("groups.count=1", f"run.root='{root}'", args={"steps": 3})
    assert run.process.wait(60) == 0, run.text


def test_who_follows_a_run_whose_directory_is_removed_does_not_wait_for_ever(local: Backend) -> None:
    run = local.start("groups.count=1", args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(3, groups=1)
    controller = int(run.named("run_started")[0]["pid"])  # type: ignore[call-overload]
    shutil.rmtree(run.dir)
    assert run.process.wait(40) != 0
    assert "was removed" in run.text
    os.kill(controller, 9)
