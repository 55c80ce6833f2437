"""`ftslurm events` prints what has happened, and goes on; `ftslurm wait` ends with the run, and says how it ended."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
import time
from pathlib import Path

import example_journal as ex
import pytest

from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir, replace_text

DIED = (ex.launched(1, 1), ex.joined(2, 1, 1), ex.exited(60, 1))
GONE = 2**22 + 1  # no process can have this id


def run_of(folder: Path, *lines: ex.Line, process: int = 0) -> RunDir:
    """Make a run of a local controller: this process (0), or another."""
    run = RunDir(folder / "ddp")
    run.create()
    config = Config()
    config.job.script, config.cluster.kind = __file__, "local"
    run.config.write_text(compose.dump(config))
    replace_text(run.job_id, str(process or os.getpid()))
    return ex.write(run, [ex.started() | {"host": platform.node(), "pid": process or os.getpid()}, *lines])


def later(run: RunDir, *lines: ex.Line) -> threading.Timer:
    """Append lines to a journal in half a second."""

    def write() -> None:
        with run.events.open("a") as journal:
            journal.write("".join(json.dumps(line) + "\n" for line in lines))

    timer = threading.Timer(0.5, write)
    timer.start()
    return timer


def test_each_event_is_a_line_with_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, *DIED, ex.finished(70, "failed", reason="too few groups"))
    assert main(["events", str(run.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = time.strftime("%H:%M:%S", time.localtime(ex.START + 60))
    assert f"{at} group 1 attempt 0 died at step 1: killed (signal 9) on n2" in " ".join(lines)
    assert "the run failed" in lines[-1]


def test_lines_before_a_time_are_left_out_and_yet_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, *DIED)
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ex.START + 59))
    assert main(["events", str(run.root), "--since", since]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "group 1 attempt 0 died at step 1" in line


def test_no_time_is_spent_on_progress_that_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [ex.progress(3 + second, 0, 10 * second) for second in range(7000)]
    run = run_of(tmp_path, ex.launched(1, 0), ex.joined(2, 0, 1), *steps, ex.finished(7010))
    assert main(["events", str(run.root)]) == 0
    few = capsys.readouterr().out
    with run.progress.open("ab") as file:
        file.write(run.progress.read_bytes() * 60)  # 60 MB took 20 s
    began = time.process_time()
    assert main(["events", str(run.root)]) == 0
    assert time.process_time() - began < 5
    assert capsys.readouterr().out == few
    assert "120 steps" in few.splitlines()[-1]


def test_followed_it_goes_on_until_the_run_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as controller:
        run = run_of(tmp_path, process=controller.pid)
        timer = later(run, *DIED, ex.finished(70))
        threading.Timer(1.0, controller.kill).start()
        assert main(["events", "-f", str(run.root)]) == 0
        timer.join()
    assert "the run succeeded" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 1), ("stopped", 1)])
def test_wait_returns_the_exit_code_of_the_run(
    outcome: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftslurm.api.state.END_S", 0.1)  # this process, which stands for the controller, goes on
    run = run_of(tmp_path)
    timer = later(run, ex.finished(70, outcome, reason="because of x"))
    assert main(["wait", str(run.root)]) == code
    timer.join()
    said = capsys.readouterr().out
    assert said.startswith("ddp ")
    assert said.endswith("because of x\n")


def test_wait_waits_no_longer_than_it_may_and_not_for_a_lost_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    going = run_of(tmp_path / "a")
    assert main(["wait", str(going.root), "--timeout", "0.3"]) == 1
    assert "is not over after 0.3 s" in capsys.readouterr().err
    lost = run_of(tmp_path / "b", process=GONE)
    assert main(["wait", str(lost.root)]) == 2
    assert "is lost" in capsys.readouterr().err
