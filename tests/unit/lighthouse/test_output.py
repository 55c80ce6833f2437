"""The Lighthouse's log lines and heartbeats never block it, and a failed order does not affect others."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.guard import Task
from ftslurm.guard.rank_log import take_output
from ftslurm.lighthouse import server
from ftslurm.lighthouse.server import beat, listen_to
from ftslurm.protocol import messages

TALK = """
import os, time
from ftslurm.lighthouse.output import flush, log
start = time.monotonic()
for number in range(3000):
    log(f"line {number} " + "x" * 1000)
flush(0.1)
assert time.monotonic() - start < 2.0
print("went on", flush=True)
os._exit(0)  # as the Lighthouse ends
"""


def talk(stderr: Any) -> None:
    done = subprocess.run([sys.executable, "-c", TALK], stdout=subprocess.PIPE, stderr=stderr, timeout=20)
    assert done.stdout == b"went on\n"


def test_a_full_disk_does_not_stop_who_logs() -> None:
    with open("/dev/full", "wb") as full:
        talk(full)


def test_a_log_that_takes_nothing_does_not_hold_up_who_logs() -> None:
    out, stuck = os.pipe()
    try:
        talk(stuck)
        assert os.read(out, 6) != b""
    finally:
        os.close(out)
        os.close(stuck)


def test_lines_come_in_order_with_their_time(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        code = "from ftslurm.lighthouse.output import *; log('one \\udcff'); log('two'); flush()"
        subprocess.run([sys.executable, "-c", code], stderr=file, timeout=20, check=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line[20:] for line in lines] == ["one \\udcff", "two"]


def task(log_dir: str = "/nowhere") -> Task:
    return Task(0, 0, "node", argparse.Namespace(log_dir=log_dir, log_max_mb=0), Gateway(pair()[1]))


def test_a_log_that_cannot_be_opened_leaves_the_output_where_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    take_output("/dev/null/lighthouse.log")
    assert "warning: /dev/null/lighthouse.log cannot be made: Not a directory" in capfd.readouterr().err


def since(task: Task) -> float:
    place = task.position.read()
    assert place is not None
    return place.since_s


def test_the_pulse_stops_while_the_event_loop_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BEAT_EVERY_S", 0.01)
    lighthouse = task()

    async def live() -> tuple[float, float]:
        beats = asyncio.create_task(beat(lighthouse.position))
        await asyncio.sleep(0.4)
        alive = since(lighthouse)
        time.sleep(0.4)  # like a file system that does not answer
        still = since(lighthouse)
        beats.cancel()
        return alive, still

    alive, still = asyncio.run(live())
    assert alive < 0.4
    assert still >= 0.4


def test_an_order_that_goes_wrong_does_not_drop_the_next_of_the_same_read() -> None:
    obeyed: list[int] = []

    def obey(message: messages.Order) -> None:
        assert isinstance(message, messages.Member)
        if message.group == 1:
            raise OSError(28, "No space left on device")
        obeyed.append(message.group)

    feed(obey, ["rubbish", "{}", *(messages.encode(messages.Member(n, 0, "s")).decode().strip() for n in range(3))])
    assert obeyed == [0, 2]


def feed(obey: Callable[[messages.Order], None], lines: list[str]) -> None:
    async def read() -> None:
        out, into = os.pipe()
        os.write(into, "".join(f"{line}\n" for line in lines).encode())
        os.close(into)
        listen_to(out, obey)
        await asyncio.sleep(0.1)
        os.close(out)

    asyncio.run(read())


@pytest.mark.parametrize("kind", ["ftslurm", "torchft"])
def test_the_guard_tells_for_how_long_a_stopped_lighthouse_has_stood_still_and_limits_its_log(
    tmp_path: Path, kind: str
) -> None:
    if kind == "torchft" and not find_spec("torchft"):
        pytest.skip("torchft is not installed")
    settings = {"kind": kind, "attempt": 0, "highest": 0, "min_replicas": 1}
    settings |= {"join_timeout_ms": 1000, "heartbeat_timeout_ms": 1000, "quorum_tick_ms": 5000}
    argv = [f"--log-dir={tmp_path}", "--log-max-mb=1", "--heartbeat-s=0.1", "--orphan-after-s=300"]  # nobody pings it
    process = subprocess.Popen(
        [sys.executable, "-m", "ftslurm.lighthouse", *argv, f"--lighthouse={json.dumps(settings)}"],
        env=os.environ | {"FTSLURM_RUN_DIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout

    def until(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert process.stdout
        for line in process.stdout:
            if wanted(message := json.loads(line)):
                return dict(message)
        raise AssertionError("it has ended")

    try:
        worker = until(lambda m: m["type"] == "hello")["pid"]
        until(lambda m: m["type"] == "address")
        first = until(lambda m: m["type"] == "alive" and m["step"])
        later = until(lambda m: m["type"] == "alive" and m["step"] > first["step"] + 2 and m["since_s"] < 0.5)
        assert later["stage"] == 0
        os.kill(worker, signal.SIGSTOP)
        still = until(lambda m: m["type"] == "alive" and m["state"] == "T" and m["since_s"] > 0.6)
        os.kill(worker, signal.SIGCONT)
        until(lambda m: m["type"] == "alive" and m["step"] > still["step"] and m["since_s"] < 0.5)
        log = tmp_path / "lighthouse.log"
        with log.open("ab") as file:
            file.write((b"x" * 999 + b"\n") * 3000)  # as a library would
        deadline = time.monotonic() + 20
        while log.stat().st_size >= 1 << 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "bytes of this log were dropped here (logs.max_mb=1)" in log.read_text()
    finally:
        process.stdin.close()  # end-of-file ends the process, see --adoptable
        process.wait(20)
        process.stdout.close()
