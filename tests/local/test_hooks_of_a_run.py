"""Hooks of a real run: they are told what happens, and people see which of them fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Backend
from quick import ask, ftslurm

pytestmark = pytest.mark.light


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def test_a_run_tells_its_hooks_and_says_which_of_them_fail(local: Backend, tmp_path: Path) -> None:
    note = executable(tmp_path / "note.sh", f"cat >> {tmp_path}/heard")
    fails = executable(tmp_path / "fails.sh", "echo no route to host; exit 3")
    run = local.start(f"hooks.on_event=[[{note}],[{fails}]]", args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, 2)
    run.kill(1)
    run.wait_until_back(1)

    def failures() -> int:
        shown = json.loads(ask(run, "status", "--json")[1])
        return sum(hook["failed"] for hook in shown["hooks"] if hook["name"] == "hook fails.sh")

    run.until(lambda: failures() >= 3, "the failures are shown while the run goes on")
    run.end_soon()
    run.finish()
    heard = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    assert [one["kind"] for one in heard] == ["run_started", "group_failed", "group_restarted", "run_finished"]
    assert "hook fails.sh: 4 of 4 failed, 0 dropped: exit code 3: no route to host (logs/observer.log)" in run.text
    assert "hook note.sh" not in run.text


def test_a_hook_that_is_no_program_is_refused_before_anything_starts(tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        done = ftslurm("run", "cluster=local", f"run.root={tmp_path}/runs", "job=ddp", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "runs").exists()
        return done.stderr

    assert "no-such-program is no program that can be run" in refused("hooks.on_event=[[no-such-program]]")
    assert "did you mean group_failed?" in refused("hooks.on_event=[{command: [cat], events: [group_fails]}]")
    assert "write module.Class" in refused("hooks.callbacks=[MyCallback]")
    assert "must end in .prom" in refused("metrics.textfile=/tmp/ftslurm.txt")
    assert "a host of loopback" in refused("metrics.listen=0.0.0.0:9400")
