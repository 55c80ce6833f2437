"""The source of the token, which no other user can read, and the port that wants to see it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from hpack import Encoder

from ftslurm.errors import ConfigError
from ftslurm.lighthouse.grpc_server import Connection, GrpcServer
from ftslurm.lighthouse.http2_authority import PREFACE, frame
from ftslurm.lighthouse.token_gate import MOST_UNPROVEN, VARIABLE, Door, token, write_private

GOOD = "abcDEF0123456789._~-xyz"


def test_a_random_one_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = token(str(path), {})
    assert token(str(path), {}) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
    assert token(str(tmp_path / "other"), {}) != made
    assert len(made) >= 43  # 256 bits


def test_one_in_the_environment_or_in_the_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert token(str(path), {VARIABLE: GOOD}) == GOOD
    assert not path.exists()
    write_private(str(path), f"{GOOD}\n")
    assert token(str(path), {}) == GOOD


@pytest.mark.parametrize("bad", ["", "short", "a" * 21, "a" * 201, GOOD + "@", GOOD + " x", GOOD + "/", "ä" * 30])
def test_what_cannot_stand_in_a_url_or_be_guessed_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match=VARIABLE):
        token(str(tmp_path / "token"), {VARIABLE: bad})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(GOOD)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        token(str(path), {})


def test_a_link_or_a_pipe_in_its_place_is_not_followed_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(GOOD)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        token(str(tmp_path / "link"), {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="chmod"):
        token(str(tmp_path / "pipe"), {})


def test_many_managers_that_come_at_once_are_all_let_in() -> None:
    """The server was busy: all connections and their first requests are there before it looks at any of them."""

    async def run() -> list[bytes]:
        server = GrpcServer({"/echo": lambda data: data})
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)
        door = await Door(GOOD, partial(Connection, server)).open(listener)
        block = Encoder().encode([(":path", "/echo"), (":authority", f"{GOOD}@host")])
        asked = PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, block) + frame(0, 1, 1, b"\0\0\0\0\2hi")
        with ExitStack() as clients:
            made = []
            for _ in range(MOST_UNPROVEN + 100):
                made.append(clients.enter_context(socket.create_connection(listener.getsockname())))
                made[-1].sendall(asked)
            answers = [await asyncio.to_thread(whole, sock) for sock in made]
        door.close()
        server.stop()
        return answers

    assert all(b"hi" in answer for answer in asyncio.run(run()))


def whole(sock: socket.socket) -> bytes:
    """Return what a server sends until the call is over, or it has hung up."""
    sock.settimeout(10)
    data, deadline = b"", time.monotonic() + 10
    while b"grpc-status" not in data and time.monotonic() < deadline:
        if not (more := sock.recv(65536)):
            break
        data += more
    return data
