"""A Lighthouse without a controller, as sbatch/lighthouse.sbatch runs it, asked by torchft's own client."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torchft.coordination import LighthouseClient

from ftslurm.errors import ConfigError
from ftslurm.lighthouse import alone

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one in the test's folder; returns when it serves."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ftslurm.lighthouse", "name=mine", *words]
        with (tmp_path / "log").open("a") as log_file:
            started.append(subprocess.Popen(command, cwd=tmp_path, stderr=log_file, text=True))
        deadline = time.monotonic() + 20
        while not (tmp_path / "mine.url").exists():
            assert started[-1].poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def quorum(folder: Path, name: str, step: int) -> int:
    """Ask for a quorum; its id.

    Raises:
        TimeoutError: there is none.
    """
    client = LighthouseClient((folder / "mine.url").read_text().strip(), connect_timeout=timedelta(seconds=10))
    return int(client.quorum(name, timeout=timedelta(seconds=1), step=step, store_address=f"{name}:1").quorum_id)


def log(folder: Path) -> str:
    return (folder / "log").read_text()


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait(20) == 0


def test_it_goes_on_where_it_was_and_forgets_when_nobody_is_left(start: Start, tmp_path: Path) -> None:
    first = start("quorum_tick_ms=20")
    assert quorum(tmp_path, "a", 7) == 1
    end(first)
    assert not (tmp_path / "mine.url").exists()

    second = start("quorum_tick_ms=20", "heartbeat_timeout_ms=200", "forget_after_ms=1500")
    assert quorum(tmp_path, "a", 8) == 1  # the same members
    with pytest.raises(TimeoutError):
        quorum(tmp_path, "fresh", 3)  # somebody may have the eight steps
    deadline = time.monotonic() + 20
    while "may begin anew" not in log(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert quorum(tmp_path, "fresh", 3) > 1
    end(second)


@pytest.mark.parametrize("word", ["min=2", "port", "port=x", "port=70000", "min_replicas=0"])
def test_what_is_no_setting_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=r"min_replicas|port"):
        alone.read([word])
