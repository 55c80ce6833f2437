"""torchft's checkpoint server and client: the run gets the state; a stranger gets nothing, and cannot send any."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.client
import http.server
import pickle
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from old_kernel import on_an_old_kernel

from ftslurm.guard.interfaces import Reach, family
from ftslurm.security import handshake
from ftslurm.worker import closed_transport

http_transport: Any = pytest.importorskip("torchft.checkpointing.http_transport")
TIMEOUT = timedelta(seconds=20)


class Guard:
    """The part of a guard that the transport uses."""

    def __init__(self, key: bytes = b"k" * 32) -> None:
        self.own = key
        self.refused: list[tuple[str, str]] = []

    def key(self) -> bytes:
        return self.own

    def tell(self, kind: str, words: str) -> None:
        self.refused.append((kind, words))

    def first_refusal(self) -> str:
        """Wait for the first logged refusal; the refused side may know it sooner."""
        deadline = time.monotonic() + 20
        while not self.refused:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.refused[0][1]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reach], Guard]:
    for name in ("_IPv6HTTPServer", "urllib", "socket"):
        monkeypatch.setattr(http_transport, name, getattr(http_transport, name))

    def make(reach: Reach) -> Guard:
        made = Guard()
        closed_transport.install(made, reach)  # type: ignore[arg-type]
        return made

    return make


@pytest.fixture
def guard(install: Callable[[Reach], Guard]) -> Guard:
    return install(Reach("127.0.0.1", "127.0.0.1"))


@pytest.fixture
def sender(guard: Guard) -> Iterator[Any]:
    made = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    made.send_checkpoint([1], step=7, state_dict={"w": torch.arange(5)}, timeout=TIMEOUT)
    yield made
    made.shutdown()


@pytest.mark.parametrize("chunks", [0, 3])
def test_the_run_gets_the_state(guard: Guard, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody's
    there = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=chunks)
    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=chunks)
    there.send_checkpoint([1], step=7, state_dict={"w": torch.arange(5), "n": 3}, timeout=TIMEOUT)
    assert there.metadata().startswith("http://127.0.0.1:")
    got = here.recv_checkpoint(0, there.metadata(), 7, TIMEOUT)
    assert torch.equal(got["w"], torch.arange(5))
    assert got["n"] == 3
    assert guard.refused == []
    for each in (there, here):
        each.shutdown()


@pytest.mark.parametrize("six", [False, True])
def test_a_server_at_all_addresses_is_reached_also_where_the_kernel_has_no_ipv6(
    install: Callable[[Reach], Guard], six: bool
) -> None:
    def exchange() -> Any:
        install(Reach("localhost", ""))  # what cluster.interface=auto mostly leads to
        there, here = (http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=3) for _ in range(2))
        there.send_checkpoint([1], step=7, state_dict={"w": torch.arange(5)}, timeout=TIMEOUT)
        both = family("") == socket.AF_INET6  # as guard/admission.py listens
        listener = socket.create_server(("", 0), family=family(""), dualstack_ipv6=both)
        with listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5):
            got = here.recv_checkpoint(0, there.metadata(), 7, TIMEOUT)
        for each in (there, here):
            each.shutdown()
        return got

    assert torch.equal((exchange() if six else on_an_old_kernel(exchange))["w"], torch.arange(5))


def test_a_local_runs_server_is_on_loopback_alone(sender: Any) -> None:
    assert sender._server.socket.getsockname()[0] == "127.0.0.1"


def test_a_stranger_gets_nothing(guard: Guard, sender: Any) -> None:
    for path in ("7/full", "7/metadata"):
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"{sender.address()}{path}", timeout=5).read()
    assert "a connection from 127.0.0.1" in guard.first_refusal()


def test_another_runs_key_gets_nothing(guard: Guard, sender: Any) -> None:
    address = sender.address().removeprefix("http://").rstrip("/")
    host, _, port = address.removesuffix("/checkpoint").rpartition(":")
    with socket.create_connection((host, int(port)), 5) as sock, pytest.raises(ConnectionResetError):
        handshake.introduce(sock, b"o" * 32, address)
    assert "a connection from 127.0.0.1" in guard.first_refusal()


class Evil:
    def __reduce__(self) -> Any:
        return open, ("unpickled", "w")


def test_nothing_that_a_stranger_serves_is_unpickled(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance at the port of a dead group's server."""
    monkeypatch.chdir(tmp_path)
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pickle.dumps(Evil()))

    class Impostor(http.server.ThreadingHTTPServer):
        def finish_request(self, request: Any, client_address: Any) -> None:
            request.sendall(handshake.challenge())
            request.recv(handshake.ANSWER, socket.MSG_WAITALL)
            request.sendall(b"p" * handshake.PROOF)
            super().finish_request(request, client_address)

    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    for kind in (http.server.ThreadingHTTPServer, Impostor):
        with kind(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with pytest.raises((handshake.Refused, TimeoutError, urllib.error.URLError)):
                here.recv_checkpoint(0, f"http://127.0.0.1:{server.server_port}/checkpoint/", 7, timedelta(seconds=2))
            server.shutdown()
    assert asked == []
    assert list(tmp_path.iterdir()) == []
    assert any(kind == "server" for kind, _ in guard.refused)
    here.shutdown()


def test_without_a_key_nobody_is_served(guard: Guard, sender: Any) -> None:
    guard.own = b""
    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    with pytest.raises((handshake.Refused, urllib.error.URLError)):
        here.recv_checkpoint(0, sender.metadata(), 7, TIMEOUT)
    here.shutdown()


def test_silent_strangers_do_not_keep_the_run_out(guard: Guard, sender: Any) -> None:
    where = ("127.0.0.1", sender._server.socket.getsockname()[1])
    held = [socket.create_connection(where) for _ in range(2 * closed_transport.MOST_STRANGERS)]
    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    assert torch.equal(here.recv_checkpoint(0, sender.metadata(), 7, TIMEOUT)["w"], torch.arange(5))
    for sock in held:
        sock.close()
    here.shutdown()


def test_where_no_thread_can_be_had_no_place_is_lost(
    guard: Guard, sender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    where = ("127.0.0.1", sender._server.socket.getsockname()[1])
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", none)
        for _ in range(2 * closed_transport.MOST_STRANGERS):
            with socket.create_connection(where, 5.0) as sock, contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    assert torch.equal(here.recv_checkpoint(0, sender.metadata(), 7, TIMEOUT)["w"], torch.arange(5))
    here.shutdown()


@pytest.mark.parametrize("asks", ["the one that heals", "the one it heals from"])
def test_a_transfer_ends_when_the_node_at_its_other_end_vanishes(
    asks: str, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that drops all that arrives stands for a node that is gone; TIMEOUT is longer."""
    monkeypatch.setattr(closed_transport, "GONE_S", 3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        closed_transport._end_if_gone(near)
        near.settimeout(TIMEOUT.total_seconds())
        drop_everything(far)
        begun = time.monotonic()
        with pytest.raises(OSError, match="timed out") as ended:
            near.recv(1) if asks == "the one that heals" else near.sendall(bytes(64 << 20))
        assert ended.value.errno == errno.ETIMEDOUT  # the kernel's
        assert time.monotonic() - begun < TIMEOUT.total_seconds() / 2


def drop_everything(connection: socket.socket) -> None:
    """Attach a filter that lets no segment in (socket(7), SO_ATTACH_FILTER)."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0 bytes
    connection.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(code)))


@pytest.mark.nightly
def test_40_groups_heal_from_one_at_the_same_time(guard: Guard) -> None:
    there = http_transport.HTTPTransport(timeout=timedelta(seconds=60), num_chunks=8)
    state = {str(number): torch.full((250_000,), float(number)) for number in range(16)}
    there.send_checkpoint([1], step=7, state_dict=state, timeout=TIMEOUT)

    def heal(_: int) -> bool:
        got = there.recv_checkpoint(0, there.metadata(), 7, timedelta(seconds=60))
        return all(torch.equal(got[name], tensor) for name, tensor in state.items())

    with ThreadPoolExecutor(40) as pool:
        assert all(pool.map(heal, range(40)))
    assert guard.refused == []
    there.shutdown()
