"""A run whose directory can no longer be written: it trains on, says so everywhere, and writes all when it can."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from failing_disk import FailingDisk
from full_disk import fill, full_disk, make_room
from harness import Backend, Run

HOOK = """#!/bin/sh
cat >> "$TOLD"
"""
CANNOT = ".jsonl cannot be written ({})"


def train(backend: Backend, tmp_path: Path, told: Path) -> Run:
    """Start a run that goes on for ever, with a hook that writes what it gets into a file."""
    hook = tmp_path / "hook.sh"
    hook.write_text(HOOK)
    hook.chmod(0o700)
    backend.environ["TOLD"] = str(told)
    words = ["groups.count=2", f'hooks.on_event=[{{command: ["{hook}"], events: [warning]}}]', "restart.backoff_s=0.5"]
    run = backend.start(*words, args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, groups=2)
    return run


def complaints(told: Path, words: str) -> list[str]:
    lines = told.read_text().splitlines() if told.exists() else []
    return [line for line in lines if words in json.loads(line)["text"]]


def check_told(run: Run, told: Path, reason: str) -> None:
    """Check that status, as text and JSON, and the hook have the reason."""
    words = CANNOT.format(reason)
    run.until(lambda: len(complaints(told, words)) == 1, "the hook is told", 30)
    for verb in (("status",), ("status", "--json")):
        said = [""]

        def has_it(verb: tuple[str, ...] = verb, said: list[str] = said) -> bool:
            code, said[0] = run.ask(*verb)
            assert code == 0
            assert "is gone" not in said[0], said
            return words in said[0]

        run.until(has_it, f"{verb}: {said}", 30)  # a page may have become free for a moment


def check_trains_on(run: Run, *groups: int) -> None:
    before = {group: len(run.steps(group)) for group in groups}
    run.until(lambda: all(len(run.steps(group)) > n + 10 for group, n in before.items()), "it trains on", 30)


def lose_a_group(run: Run) -> None:
    """Kill a group that cannot even make its next log, and wait until it commits again."""
    attempts = {step["attempt"] for step in run.steps(1)}
    os.kill(run.pid(1), 9)
    run.until(lambda: {step["attempt"] for step in run.steps(1)} > attempts, "group 1 is back", 60)
    check_trains_on(run, 0, 1)


def check_whole(run: Run) -> None:
    """Check that the journal has every line once, and says that it was late."""
    last = run.end_soon()
    run.finish(warns=True)
    ends = [run.steps(group)[-1] for group in (0, 1)]
    assert {step["step"] for step in ends} == {last}
    assert len({step["digest"] for step in ends}) == 1
    assert [line["seq"] for line in run.events] == list(range(1, len(run.events) + 1))
    assert [line["attempt"] for line in run.named("step_launched", group=1)] == [0, 1]
    assert run.named("step_exited", group=1, attempt=0, cause="killed")
    texts = [str(line["text"]) for line in run.named("warning")]
    assert "cannot be written" in texts[0]
    assert "can be written again" in texts[-1]
    assert texts[0] in run.text  # as soon as the journal has it


def how_to_end(run: Run) -> list[str]:
    """Return the command that `stop` names because it cannot leave its own in the inbox."""
    code, said = run.ask("stop")
    assert code != 0
    assert "No space left on device" in said
    return said.rpartition("End it with: ")[2].split()


@pytest.mark.parametrize(
    "backend",
    [pytest.param("local", marks=pytest.mark.nightly), pytest.param("slurm", marks=pytest.mark.slurm)],
    indirect=True,
)
def test_a_full_disk(backend: Backend, tmp_path: Path) -> None:
    with full_disk(tmp_path / "runs0", kib=4096) as disk:
        make_room(disk)
        run = train(backend, tmp_path, tmp_path / "told")
        fill(disk)
        check_told(run, tmp_path / "told", "No space left on device")
        lose_a_group(run)
        assert how_to_end(run)[0] in ("kill", "scancel")
        make_room(disk)
        run.wait_for("group_joined", group=1, attempt=1)
        time.sleep(6)  # until it counts as mended
        check_whole(run)


@pytest.mark.parametrize(
    ("number", "percent"),
    [
        (errno.EIO, 50),
        *(pytest.param(getattr(errno, name), 100, marks=pytest.mark.nightly) for name in ("EDQUOT", "EROFS", "ESTALE")),
        *(pytest.param(getattr(errno, name), 20, marks=pytest.mark.nightly) for name in ("ENOSPC", "ESTALE")),
    ],
)
def test_each_error_at_any_write(local: Backend, tmp_path: Path, number: int, percent: int) -> None:
    disk = FailingDisk(tmp_path, tmp_path / "runs0")
    local.environ |= disk.environ
    run = train(local, tmp_path, tmp_path / "told")
    disk.fail(number, percent)
    lose_a_group(run)
    disk.mend()
    run.wait_for("group_joined", group=1, attempt=1)
    time.sleep(6)
    check_whole(run)
    assert len(complaints(tmp_path / "told", CANNOT.format(os.strerror(number)))) == 1


@pytest.mark.nightly
def test_a_run_that_ends_on_a_full_disk_leaves_its_verdict(backend: Backend, tmp_path: Path) -> None:
    with full_disk(tmp_path / "runs0", kib=4096) as disk:
        make_room(disk)
        run = train(backend, tmp_path, tmp_path / "told")
        fill(disk)
        check_told(run, tmp_path / "told", "No space left on device")
        subprocess.run(how_to_end(run), env=run.environ, check=True)
        assert run.process.wait(60) == 1
        assert "stopped" in run.text.splitlines()[-1], run.text
        assert "No space left on device" in run.text.splitlines()[-1]
        assert "stopped" in json.loads(run.ask("status", "--json")[1])["note"]
        run.until(lambda: not run.processes(), "no process is left", 30)  # nobody starts another controller
        assert len(run.named("run_started")) == 1
