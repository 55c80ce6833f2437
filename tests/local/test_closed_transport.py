"""torchft's checkpoint server and client: the run gets the state; a stranger gets nothing, and cannot send any."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.server
import pickle
import socket
import struct
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import guarded_network
import pytest
import torch
from guarded_network import KEY
from old_kernel import on_an_old_kernel

from ftslurm.guard.gateway import Gateway
from ftslurm.guard.interfaces import Reach
from ftslurm.guard.sockets import end_if_gone, end_if_silent
from ftslurm.security import handshake
from ftslurm.worker import closed_transport

http_transport: Any = pytest.importorskip("torchft.checkpointing.http_transport")
TIMEOUT = timedelta(seconds=20)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gateway]]:
    """Close torchft's transports behind a guard's network, which has a key."""
    for name in ("_IPv6HTTPServer", "urllib"):
        monkeypatch.setattr(http_transport, name, getattr(http_transport, name))
    monkeypatch.setattr(http_transport.HTTPTransport, "address", http_transport.HTTPTransport.address)
    with contextlib.ExitStack() as guards:

        def make(*keys: bytes, reach: Reach | None = None) -> Gateway:
            made = guards.enter_context(guarded_network.asked(*keys or (KEY,)))
            made.reach = reach or made.reach
            closed_transport.install(made)
            return made

        yield make


@pytest.fixture
def guard(install: Callable[..., Gateway]) -> Gateway:
    return install()


@pytest.fixture
def sender(guard: Gateway) -> Iterator[Any]:
    made = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    made.send_checkpoint([1], step=7, state_dict={"w": torch.arange(5)}, timeout=TIMEOUT)
    yield made
    made.shutdown()


def place_of(sender: Any) -> tuple[str, int]:
    """Return the address that others reach."""
    split = urlsplit(sender.address())
    return str(split.hostname), int(split.port or 0)


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("chunks", [0, 3])
def test_the_run_gets_the_state(
    chunks: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody's
    there, other, here = (http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=chunks) for _ in range(3))
    for number, one in ((3, there), (4, other)):  # a process may have several
        one.send_checkpoint([1], step=7, state_dict={"w": torch.arange(5), "n": number}, timeout=TIMEOUT)
        assert place_of(one)[0] == "127.0.0.1"
    for number, one in ((3, there), (4, other)):
        got = here.recv_checkpoint(0, one.metadata(), 7, TIMEOUT)
        assert torch.equal(got["w"], torch.arange(5))
        assert got["n"] == number
    for each in (there, other, here):
        each.shutdown()
    assert "refused" not in capfd.readouterr().err


@pytest.mark.parametrize("six", [False, True])
def test_a_server_at_all_addresses_is_reached_also_where_the_kernel_has_no_ipv6(
    install: Callable[..., Gateway], six: bool
) -> None:
    def exchange() -> Any:
        install(reach=Reach("localhost", ""))  # what cluster.interface=auto mostly leads to
        there, here = (http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=3) for _ in range(2))
        there.send_checkpoint([1], step=7, state_dict={"w": torch.arange(5)}, timeout=TIMEOUT)
        got = here.recv_checkpoint(0, there.metadata(), 7, TIMEOUT)
        for each in (there, here):
            each.shutdown()
        return got

    assert torch.equal((exchange() if six else on_an_old_kernel(exchange))["w"], torch.arange(5))


def test_a_stranger_gets_nothing(sender: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for path in ("7/full", "7/metadata"):
        with socket.create_connection(place_of(sender), 5) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(f"GET /checkpoint/{path} HTTP/1.0\r\n\r\n".encode())
            assert b"HTTP" not in sock.recv(1000) + sock.recv(1000)
    assert "refused: a connection from 127.0.0.1" in capfd.readouterr().err


class Evil:
    def __reduce__(self) -> Any:
        return open, ("unpickled", "w")


@pytest.mark.usefixtures("guard")
def test_nothing_that_a_stranger_serves_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
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
            for url in ("http://checkpoint:0@127.0.0.1", "http://127.0.0.1"):
                with pytest.raises((TimeoutError, urllib.error.URLError)):
                    here.recv_checkpoint(0, f"{url}:{server.server_port}/checkpoint/", 7, timedelta(seconds=2))
            server.shutdown()
    assert asked == []
    assert list(tmp_path.iterdir()) == []
    assert "is held by something that is not of this run" in capfd.readouterr().err
    here.shutdown()


@pytest.mark.parametrize("keys", [(b"",), (b"o" * 32,)])
def test_whose_guard_has_no_key_or_another_runs_gets_nothing(
    keys: tuple[bytes], sender: Any, install: Callable[..., Gateway]
) -> None:
    address = sender.metadata()
    install(*keys)
    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    with pytest.raises(urllib.error.URLError):
        here.recv_checkpoint(0, address, 7, TIMEOUT)
    here.shutdown()


@pytest.mark.usefixtures("guard")
def test_silent_strangers_do_not_keep_the_run_out(sender: Any) -> None:
    held = [socket.create_connection(place_of(sender)) for _ in range(200)]
    here = http_transport.HTTPTransport(timeout=TIMEOUT, num_chunks=0)
    assert torch.equal(here.recv_checkpoint(0, sender.metadata(), 7, TIMEOUT)["w"], torch.arange(5))
    for sock in held:
        sock.close()
    here.shutdown()


@pytest.mark.parametrize(
    ("asks", "watch"), [("the one that heals", end_if_silent), ("the one it heals from", end_if_gone)]
)
def test_a_transfer_ends_when_the_node_at_its_other_end_vanishes(
    asks: str, watch: Callable[[socket.socket, int], None]
) -> None:
    """A kernel that drops all that arrives stands for a node that is gone; TIMEOUT is longer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        watch(near, 3)
        near.settimeout(TIMEOUT.total_seconds())
        drop_everything(far)
        begun = time.monotonic()
        with pytest.raises(OSError, match="timed out") as ended:
            near.recv(1) if asks == "the one that heals" else near.sendall(bytes(64 << 20))
        assert ended.value.errno == errno.ETIMEDOUT  # the kernel's
        assert time.monotonic() - begun < TIMEOUT.total_seconds() / 2


def test_a_healer_that_does_not_read_for_long_gets_the_rest() -> None:
    """It is stopped, or swaps; its kernel answers. The window is full for three times as long as a lost node has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far, ThreadPoolExecutor(1) as pool:
        end_if_gone(near, 3)
        sent = pool.submit(near.sendall, bytes(64 << 20))
        time.sleep(9)
        left = 64 << 20
        while left:
            left -= len(far.recv(1 << 20))
        sent.result(10)


def drop_everything(connection: socket.socket) -> None:
    """Attach a filter that lets no segment in (socket(7), SO_ATTACH_FILTER)."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0 bytes
    connection.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(code)))


@pytest.mark.nightly
@pytest.mark.usefixtures("guard")
def test_40_groups_heal_from_one_at_the_same_time(capfd: pytest.CaptureFixture[str]) -> None:
    there = http_transport.HTTPTransport(timeout=timedelta(seconds=60), num_chunks=8)
    state = {str(number): torch.full((250_000,), float(number)) for number in range(16)}
    there.send_checkpoint([1], step=7, state_dict=state, timeout=TIMEOUT)

    def heal(_: int) -> bool:
        got = there.recv_checkpoint(0, there.metadata(), 7, timedelta(seconds=60))
        return all(torch.equal(got[name], tensor) for name, tensor in state.items())

    with ThreadPoolExecutor(40) as pool:
        assert all(pool.map(heal, range(40)))
    assert "refused" not in capfd.readouterr().err
    there.shutdown()
