"""A guard whose log folder is on a file system that does not answer: nothing but the logs is late."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from failing_disk import FailingDisk
from guarded import step

from ftslurm.guard.file_calls import PATIENCE_S, FileCalls
from ftslurm.guard.rank_log import RankLog

PRINTING = "import time\nwhile True:\n    print('a line', flush=True)\n    time.sleep(0.05)\n"
FAILING = "print('up', flush=True)\nimport time\ntime.sleep(1)\nraise RuntimeError('on purpose')\n"


@pytest.mark.nightly
def test_heartbeats_and_orders_pass_while_the_marks_of_the_log_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.mkfifo(folder / "rank-0.times")  # nobody reads it: to open it takes for ever
    with step(folder) as task:
        task.begin(PRINTING)
        heard = []
        for _ in range(20):
            task.until("alive", patience_s=1.0)
            heard.append(time.monotonic())
        assert max(b - a for a, b in itertools.pairwise(heard)) < 1.0
        task.send("dump", by="a test")  # it writes to a file there, too
        task.until("dumped", patience_s=PATIENCE_S + 1.0)
        for _ in range(5):
            task.until("alive", patience_s=1.0)


ASKING = """
import os, socket, time
from urllib.parse import urlsplit
here = urlsplit(os.environ["TORCHFT_LIGHTHOUSE"])
way = socket.create_connection((here.hostname, here.port))
print("up", flush=True)
slowest, until = 0.0, time.monotonic() + 4
while time.monotonic() < until:
    began = time.monotonic()
    way.sendall(b"x")
    way.recv(1)
    slowest = max(slowest, time.monotonic() - began)
    time.sleep(0.005)
raise RuntimeError(f"slowest {slowest:.3f}")
"""


def test_what_a_worker_says_to_others_passes_while_the_guard_waits_for_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    disk = FailingDisk(tmp_path, folder / "rank-0.log")
    with socket.create_server(("127.0.0.1", 0)) as other, step(folder, env=disk.environ) as task:
        task.get_ready()
        threading.Thread(target=_echo, args=(other,), daemon=True).start()
        task.begin(ASKING, lighthouse=f"http://127.0.0.1:{other.getsockname()[1]}")
        disk.stall(5)
        task.send("dump", by="a test")
        began = time.monotonic()
        task.until("dumped", patience_s=PATIENCE_S + 2.0)
        assert time.monotonic() - began > PATIENCE_S / 2  # the guard has waited for the log
        disk.mend()
        words = str(task.until("failed", patience_s=20.0)["error"])
        assert float(words.rpartition(" ")[2]) < 0.5


def _echo(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock, _ = listener.accept()
        while data := sock.recv(100):
            sock.sendall(data)


@pytest.mark.parametrize("file", ["rank-0.times", ".task-0.end"])
def test_the_end_of_a_worker_is_told_while_nothing_can_be_written_about_it(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "run"
    disk = FailingDisk(tmp_path, folder / file)
    with step(folder, "--adoptable=1", env=disk.environ) as task:
        task.get_ready()
        disk.stall(20)
        task.begin(FAILING)
        assert "on purpose" in task.until("failed", patience_s=1.0 + 2 * PATIENCE_S + 2.0)["error"]
        assert task.until("exited", patience_s=2 * PATIENCE_S)["code"] == 1
        task.send("ping", reached=0)  # the controller answers: without an end file the guard waits for that
        assert task.process.wait(5.0) == 1


def test_the_end_file_is_there_before_the_message(tmp_path: Path) -> None:
    with step(tmp_path / "run", "--adoptable=1") as task:
        task.begin(FAILING)
        task.until("failed")
        assert b"on purpose" in (tmp_path / "run" / "task-0.end").read_bytes()


def test_a_call_that_is_late_delays_no_later_one_twice() -> None:
    calls, start = FileCalls(), time.monotonic()
    assert calls.result(lambda: time.sleep(PATIENCE_S + 0.5) or "done", "late") == "late"
    assert calls.result(lambda: "done", "late") == "late"
    assert time.monotonic() - start < PATIENCE_S + 0.4
    time.sleep(0.7)
    assert calls.result(lambda: "done", "late") == "done"


def test_of_a_log_that_grows_the_marks_are_written_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = tmp_path / "rank-0.log", [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log.write_text("")
    rank_log, written = RankLog(str(log), 1), []
    for _ in range(40):
        with log.open("a") as file:
            file.write("a line\n")
        before = len(os.listdir("/proc/self/fd"))
        rank_log.update()
        now[0] += 1.0
        written.append(len((tmp_path / "rank-0.times").read_text().splitlines()))
        assert len(os.listdir("/proc/self/fd")) <= before + 2  # the log and the marks, kept open
    assert sorted(set(written)) == [1, 11, 21, 31]
    rank_log.update(last=True)
    marks = (tmp_path / "rank-0.times").read_text().splitlines()
    assert [int(mark.split()[1]) for mark in marks] == [7 * n for n in range(1, 41)]
