"""Dialling slurmds: what answers, what refuses and what is silent, with real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import unanswered

from ftslurm.security import programs
from ftslurm.slurm.dial import PATIENCE_S, STALL_S


def dialling(folder: Path, host: str = "127.0.0.1", **ports: int) -> subprocess.Popen[str]:
    """Start the dialling of nodes whose ports a fake sinfo prints, each twice: it is in two partitions."""
    rows = "".join(f"{node}|{host}|{port}|\n" for node, port in ports.items())
    (folder / "rows").write_text(f"{rows}a site's banner\n{rows}")
    command = programs.module("ftslurm.slurm.dial", "cat", str(folder / "rows"))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def port_of(one: socket.socket) -> int:
    return int(one.getsockname()[1])


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def test_only_a_node_whose_kernel_says_nothing_is_silent(tmp_path: Path, listening: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        refuses = port_of(one)
    silent = unanswered(0)
    try:
        began = time.monotonic()
        out, _ = dialling(tmp_path, n1=port_of(listening), n2=refuses, n3=port_of(silent[0])).communicate(timeout=30)
        assert json.loads(out) == ["n3"]
        assert time.monotonic() - began >= PATIENCE_S
    finally:
        for one in silent:
            one.close()


def has_socket(pid: int) -> bool:
    with suppress(OSError):  # a descriptor is closed meanwhile
        return any(os.readlink(fd).startswith("socket") for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_a_process_that_stood_still_itself_calls_no_node_silent(tmp_path: Path) -> None:
    silent = unanswered(0)
    try:
        process = dialling(tmp_path, n1=port_of(silent[0]))
        deadline = time.monotonic() + 30
        while not has_socket(process.pid):
            assert time.monotonic() < deadline
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(PATIENCE_S + STALL_S + 0.5)
        os.kill(process.pid, signal.SIGCONT)
        assert json.loads(process.communicate(timeout=30)[0]) == []
    finally:
        for one in silent:
            one.close()


def test_a_name_that_does_not_resolve_and_a_slurm_that_is_away_say_nothing(tmp_path: Path) -> None:
    assert json.loads(dialling(tmp_path, host="n1.invalid", n1=6818).communicate(timeout=30)[0]) == []
    command = programs.module("ftslurm.slurm.dial", "false")
    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == ""
