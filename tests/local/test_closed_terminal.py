"""A run that is followed where nobody reads any more: a closed terminal, a pipe without a reader, an early signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from harness import PATIENCE_S, Backend, Run, light, quoted
from screen import Screen

NIGHTLY = pytest.mark.nightly
ENDS = (signal.SIGTERM, signal.SIGHUP)
IDLE = "import time\ntime.sleep(600)\n"


@pytest.fixture
def backend(local: Backend) -> Backend:
    return local


def words(backend: Backend, text: str) -> list[str]:
    settings = ("groups.count=1", "standby=none", "job.snapshot=none", "stop.grace_s=2", "restart=never")
    script, root = backend.script(text), backend.tmp_path / "runs0"
    return ["run", "cluster=local", f"run.root={quoted(root)}", f"job.script={quoted(script)}", light(), *settings]


def followed(backend: Backend, process: subprocess.Popen[Any]) -> Run:
    """Return the run that a process follows."""
    nothing = backend.tmp_path / "out"
    nothing.touch()
    run = Run(process, nothing, backend.tmp_path / "runs0", backend.tmp_path / "steps0", dict(os.environ))
    backend.runs.append(run)
    return run


def piped(backend: Backend, text: str) -> Run:
    """Start a run whose output is a pipe."""
    command = [sys.executable, "-m", "ftslurm", *words(backend, text)]
    pipe, cwd = subprocess.PIPE, backend.tmp_path
    process = subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True, text=True
    )
    return followed(backend, process)


def test_a_closed_terminal_stops_a_local_run(backend: Backend) -> None:
    screen = Screen(words(backend, IDLE), columns=100, cwd=backend.tmp_path)
    try:
        run = followed(backend, screen.process)
        screen.shows("RUNNING")
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, screen.ours)  # closes our side of the terminal
        os.close(nowhere)
        run.finish(130, outcome="stopped")
    finally:
        screen.close()


def test_sigterm_stops_a_run_whose_output_nobody_reads(backend: Backend) -> None:
    run = piped(backend, IDLE)
    assert run.process.stdout is not None
    assert any(line.startswith("run ") for line in run.process.stdout)
    run.process.stdout.close()
    run.wait_for("step_ready", group=0)
    time.sleep(1)  # it finds that the pipe is closed
    assert run.process.poll() is None
    run.process.terminate()
    run.finish(130, outcome="stopped")


@NIGHTLY
def test_the_exit_code_of_a_run_is_that_of_its_outcome_if_nobody_reads(backend: Backend) -> None:
    run = piped(backend, "raise SystemExit(3)\n")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.finish(1)


@pytest.mark.parametrize("number", [signal.SIGINT, *(pytest.param(n, marks=NIGHTLY) for n in ENDS)])
def test_a_signal_while_the_run_is_started_ends_it(number: signal.Signals, backend: Backend) -> None:
    run = piped(backend, IDLE)
    run.until(lambda: list(run.root.glob("*/config.yaml")), "the run directory")
    run.process.send_signal(number)
    run.finish(130, outcome="stopped")


@NIGHTLY
@pytest.mark.parametrize("closed", [1, 2])
def test_a_run_without_stdout_or_stderr_is_followed(closed: int, backend: Backend) -> None:
    command = [sys.executable, "-m", "ftslurm", *words(backend, "raise SystemExit(3)\n")]
    shell = ["bash", "-c", f'exec "$@" {closed}>&-', "-", *command]
    pipe, cwd = subprocess.PIPE, backend.tmp_path
    process = subprocess.Popen(shell, stdout=pipe, stderr=pipe, cwd=cwd, start_new_session=True, text=True)
    run = followed(backend, process)
    assert "Traceback" not in process.communicate(timeout=PATIENCE_S)[1]
    run.finish(1)


def test_stderr_without_a_reader_leaves_stdout_as_it_is() -> None:
    text = "import sys; from ftslurm.monitor.closed_output import say; say('lost', sys.stderr); say('lost', sys.stderr)"
    command = [sys.executable, "-c", f"{text}; print('kept')"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()
    assert process.stdout.read() == "kept\n"
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.nightly
def test_ctrl_c_ends_a_sweep_whose_runs_are_not_followed(backend: Backend) -> None:
    one, *settings = words(backend, "pass\n")
    command = [sys.executable, "-m", "ftslurm", one, *settings, "follow=false", "-m", "run.name=a,b,c,d,e,f"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=backend.tmp_path, start_new_session=True)
    assert process.stdout is not None
    assert any(line.startswith("follow it with") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 130
    time.sleep(1)
    runs = list((backend.tmp_path / "runs0").glob("*/config.yaml"))
    assert 1 <= len(runs) < 6
    for config in runs:
        deadline = time.monotonic() + PATIENCE_S
        while not any("run_finished" in path.read_text() for path in config.parent.glob("events.jsonl")):
            assert time.monotonic() < deadline, config
            time.sleep(0.2)
