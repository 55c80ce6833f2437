"""A run that is followed where nobody reads any more: a closed terminal, a pipe without a reader, an early signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PATIENCE_S, Backend, Run, all_processes, quoted
from screen import Screen

IDLE = "import time\ntime.sleep(600)\n"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    backend = Backend("local", {}, tmp_path)
    yield backend
    for run in backend.runs:
        run.abandon()


def words(backend: Backend, text: str) -> list[str]:
    settings = ("groups.count=1", "standby=none", "job.snapshot=none", "stop.grace_s=2", "restart.policy=never")
    script, root = backend.script(text), backend.tmp_path / "runs0"
    return ["run", "cluster=local", f"run.root={quoted(root)}", f"job.script={quoted(script)}", *settings]


def piped(backend: Backend, text: str) -> Run:
    """Start a run whose stdout is a pipe."""
    command = [sys.executable, "-m", "ftslurm", *words(backend, text)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=backend.tmp_path,
        start_new_session=True,
        text=True,
    )
    nothing = backend.tmp_path / "out"
    nothing.touch()
    run = Run(process, nothing, backend.tmp_path / "runs0", backend.tmp_path / "steps0", dict(os.environ))
    backend.runs.append(run)
    return run


def test_a_closed_terminal_stops_a_local_run(backend: Backend) -> None:
    screen = Screen(words(backend, IDLE), columns=100, cwd=backend.tmp_path)
    try:
        screen.shows("RUNNING")
        (journal,) = (backend.tmp_path / "runs0").glob("*/events.jsonl")
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, screen.ours)  # closes our side of the terminal
        os.close(nowhere)
        assert screen.process.wait(PATIENCE_S) == 130
        assert ended(journal) == "stopped"
        mark = f"FTSLURM_RUN_DIR={journal.parent}".encode()
        deadline = time.monotonic() + 10
        while left := [name for _, name, environ in all_processes() if mark in environ]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    finally:
        screen.close()


def ended(journal: Path) -> str:
    (outcome,) = [
        str(event["outcome"])
        for event in map(json.loads, journal.read_text().splitlines())
        if event["event"] == "run_finished"
    ]
    return outcome


def test_sigterm_stops_a_run_whose_output_nobody_reads(backend: Backend) -> None:
    run = piped(backend, IDLE)
    assert run.process.stdout is not None
    assert run.process.stdout.readline().startswith("run ")
    run.process.stdout.close()
    run.wait_for("step_ready", group=0)
    time.sleep(1)  # it finds that the pipe is closed
    assert run.process.poll() is None
    run.process.terminate()
    run.finish(130, outcome="stopped")


def test_the_exit_code_of_a_run_is_that_of_its_outcome_if_nobody_reads(backend: Backend) -> None:
    run = piped(backend, "raise SystemExit(3)\n")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.finish(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_run_is_started_ends_it(number: signal.Signals, backend: Backend) -> None:
    run = piped(backend, IDLE)
    run.until(lambda: list(run.root.glob("*/config.yaml")), "the run directory")
    run.process.send_signal(number)
    run.finish(130, outcome="stopped")
