"""What brings the state: the run gets it, whole or not at all; a stranger gets nothing, and cannot send any."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import guarded_network
import pytest
import torch
from guarded_network import KEY
from old_kernel import on_an_old_kernel

from ftslurm.guard.gateway import Gateway
from ftslurm.guard.interfaces import Reach
from ftslurm.guard.sockets import end_if_gone, end_if_silent
from ftslurm.security import handshake

transport: Any = pytest.importorskip("ftslurm.worker.transport")
TIMEOUT = timedelta(seconds=20)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gateway]]:
    """Have transports connect through a guard's network, which has a key."""
    with contextlib.ExitStack() as guards:

        def make(*keys: bytes, reach: Reach | None = None) -> Gateway:
            made = guards.enter_context(guarded_network.asked(*keys or (KEY,)))
            made.reach = reach or made.reach
            monkeypatch.setattr(transport.RunTransport, "gateway", made, raising=False)
            return made

        yield make


@pytest.fixture
def guard(install: Callable[..., Gateway]) -> Gateway:
    return install()


@pytest.fixture
def make(guard: Gateway) -> Iterator[Callable[..., Any]]:
    """Make a transport, which offers a state if it is given one."""
    with contextlib.ExitStack() as ends:

        def made(state: Any = None, step: int = 7) -> Any:
            one = transport.RunTransport(TIMEOUT)
            ends.callback(one.shutdown)
            if state is not None:
                one.send_checkpoint([1], step, state, TIMEOUT)
            return one

        yield made


def heal(here: Any, there: Any, step: int = 7) -> Any:
    return here.recv_checkpoint(0, there.metadata(), step, TIMEOUT)


def place_of(sender: Any) -> tuple[str, int]:
    """Return the address that others reach."""
    host, _, port = sender.metadata().partition("/")[0].rpartition(":")
    return host, int(port)


def test_the_run_gets_the_state(make: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    here = make()
    donors = [make({"w": torch.arange(5), "n": number}) for number in (3, 4)]  # a process may have several
    for number, there in zip((3, 4), donors, strict=True):
        assert place_of(there)[0] == "127.0.0.1"
        got = heal(here, there)
        assert torch.equal(got["w"], torch.arange(5))
        assert got["n"] == number
    assert "refused" not in capfd.readouterr().err


def test_every_kind_of_value_comes_as_it_was(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PIECE", 100)
    weight = torch.randn(64, 3)
    state = {
        "kinds": [torch.arange(9).to(kind) for kind in (torch.bool, torch.bfloat16, torch.complex64, torch.int8)],
        "shapes": (
            torch.tensor(2.5),
            torch.empty(0, 4),
            weight.t(),
            torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        ),
        "twice": [weight, weight],
        "parameter": torch.nn.Parameter(weight),
        "sparse": torch.eye(3).to_sparse(),
        "group": [{"lr": 0.1, "betas": (0.9, 0.99), 3: None}],
    }
    got = heal(make(), make(state))
    for name in ("kinds", "shapes", "twice"):
        for one, same in zip(got[name], state[name], strict=True):
            assert (one.dtype, one.shape) == (same.dtype, same.shape)
            assert torch.equal(one, same)
    assert got["twice"][0] is got["twice"][1]
    assert type(got["parameter"]) is torch.nn.Parameter
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    assert got["group"] == state["group"]
    assert heal(make(), make({"no": "tensor"})) == {"no": "tensor"}


@pytest.mark.parametrize("six", [False, True])
def test_a_server_at_all_addresses_is_reached_also_where_the_kernel_has_no_ipv6(
    install: Callable[..., Gateway], six: bool
) -> None:
    def exchange() -> Any:
        install(reach=Reach("localhost", ""))  # what cluster.interface=auto mostly leads to
        there, here = (transport.RunTransport(TIMEOUT) for _ in range(2))
        there.send_checkpoint([1], 7, {"w": torch.arange(5)}, TIMEOUT)
        got = heal(here, there)
        for each in (there, here):
            each.shutdown()
        return got

    assert torch.equal((exchange() if six else on_an_old_kernel(exchange))["w"], torch.arange(5))


def test_a_state_is_awaited_and_ends_with_its_step(make: Callable[..., Any]) -> None:
    there, here = make(), make()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(heal, here, there)
        time.sleep(0.2)
        there.send_checkpoint([1], 7, {"w": 1}, TIMEOUT)
        assert early.result()["w"] == 1
    there.disallow_checkpoint()
    with pytest.raises(transport.Refused, match="step 7 is offered no longer"):
        heal(here, there)
    there.send_checkpoint([1], 8, {"w": 2}, TIMEOUT)
    with pytest.raises(transport.Refused):
        heal(here, there)
    assert heal(here, there, 8)["w"] == 2


def test_the_state_changes_only_after_what_is_read_is_read(make: Callable[..., Any], guard: Gateway) -> None:
    there = make({"w": torch.zeros(32 << 20, dtype=torch.uint8)})
    with guard.dial(there.metadata(), 5) as reader, ThreadPoolExecutor(1) as pool:
        reader.settimeout(60)
        reader.sendall(struct.pack("<qqqq", transport.Kind.ALL, 7, 0, 32 << 20))
        reader.recv(8, socket.MSG_WAITALL)
        over = pool.submit(there.disallow_checkpoint)
        time.sleep(0.2)
        assert not over.done()
        left = 32 << 20
        while left:
            left -= len(reader.recv(1 << 20))
        over.result(10)


def test_a_stream_that_breaks_goes_on_where_it_stopped(
    make: Callable[..., Any], guard: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connections are cut by their third megabyte, in the middle of a piece."""
    dial, cut, lock = guard.dial, [5], threading.Lock()

    class Breaks:
        def __init__(self, connection: Any) -> None:
            self.connection, self.left = connection, 3_000_001

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.connection.close()

        def recv_into(self, view: Any) -> int:
            with lock:
                if self.left <= 0 and cut[0] > 0:
                    cut[0] -= 1
                    raise ConnectionResetError
            count = self.connection.recv_into(view)
            self.left -= count
            return int(count)

    monkeypatch.setattr(guard, "dial", lambda *args: Breaks(dial(*args)))
    state = {str(n): torch.randint(0, 255, (n * 1_000_003,), dtype=torch.uint8) for n in range(1, 9)}
    got = heal(make(), make(state))
    assert cut == [0]
    assert all(torch.equal(got[name], one) for name, one in state.items())


def test_a_copy_is_that_of_its_step_and_is_kept_while_it_is_wanted(make: Callable[..., Any], guard: Gateway) -> None:
    weight, buffer = torch.arange(1_000_000.0), torch.zeros(3)
    there = make({"user": {"w": weight, "b": buffer, "n": 1}})
    there.trained = lambda: {weight.untyped_storage().data_ptr()}
    dial, kind = (lambda: make().dial(there.metadata(), 5)), transport.Kind
    with dial() as holder:
        header = transport.Header.received(holder, kind.KEEP, 7)
        assert header.paths == ["user.w", "user.b"]
        assert header.trained == [True, False]
        digests = {transport.ask(holder, kind.DIGEST, 7)}
        there.disallow_checkpoint()
        weight += 1
        there.send_checkpoint([1], 8, {"user": {"w": weight, "b": buffer}}, TIMEOUT)
        came = header.empty()
        transport.Fetch(dial, kind.ALL, 7, came).run()
        assert torch.equal(came[0], torch.arange(1_000_000.0))
        digests.add(transport.ask(holder, kind.DIGEST, 8))
        assert len(digests) == 2
        buffer += 5
        (rest,) = came[1:]
        transport.Fetch(dial, kind.REST, 8, [rest]).run()
        assert rest.tolist() == [5, 5, 5]
        assert header.build([header.whole(0, None), rest])["user"]["n"] == 1
    guarded_network.until(lambda: not there._copies)
    with pytest.raises(transport.Refused), dial() as late:
        transport.ask(late, kind.HEADER, 7)


def test_a_donor_that_is_gone_fails_the_heal(make: Callable[..., Any], guard: Gateway) -> None:
    there, here = make({"w": torch.zeros(5)}), make()
    guard.withdraw(there.metadata().partition("/")[2])
    with pytest.raises(OSError, match=r"."):
        here.recv_checkpoint(0, there.metadata(), 7, timedelta(seconds=1))


def test_a_stranger_gets_nothing(make: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    there = make({"w": torch.arange(5)})
    with socket.create_connection(place_of(there), 5) as sock, contextlib.suppress(ConnectionError):
        challenge = sock.recv(handshake.CHALLENGE, socket.MSG_WAITALL)
        sock.sendall(struct.pack("<qqqq", transport.Kind.HEADER, 7, 0, 0))
        assert len(challenge) == handshake.CHALLENGE
        assert sock.recv(1000) + sock.recv(1000) == b""
    assert "refused: a connection from 127.0.0.1" in capfd.readouterr().err


class Evil:
    def __reduce__(self) -> Any:
        return open, ("unpickled", "w")


def test_nothing_that_a_stranger_serves_is_unpickled(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For instance at the port of a dead group's server."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def serve(server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(handshake.challenge())
                connection.recv(handshake.ANSWER, socket.MSG_WAITALL)
                connection.sendall(b"p" * handshake.PROOF)
                asked.append(connection.recv(100))
                data = pickle.dumps(Evil())
                connection.sendall(struct.pack("<q", len(data)) + data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        for service in ("/checkpoint:0", ""):
            address = f"127.0.0.1:{server.getsockname()[1]}{service}"
            with pytest.raises(OSError, match=r"."):
                make().recv_checkpoint(0, address, 7, timedelta(seconds=2))
    assert not any(asked)
    assert list(tmp_path.iterdir()) == []
    assert "is held by something that is not of this run" in capfd.readouterr().err


@pytest.mark.parametrize("keys", [(b"",), (b"o" * 32,)])
def test_whose_guard_has_no_key_or_another_runs_gets_nothing(
    keys: tuple[bytes], make: Callable[..., Any], install: Callable[..., Gateway]
) -> None:
    there = make({"w": torch.arange(5)})
    install(*keys)
    with pytest.raises(OSError, match=r"."):
        heal(make(), there)


def test_silent_strangers_do_not_keep_the_run_out(make: Callable[..., Any]) -> None:
    there = make({"w": torch.arange(5)})
    held = [socket.create_connection(place_of(there)) for _ in range(200)]
    assert torch.equal(heal(make(), there)["w"], torch.arange(5))
    for sock in held:
        sock.close()


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
def test_40_groups_heal_from_one_at_the_same_time(make: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    state = {str(number): torch.full((250_000,), float(number)) for number in range(16)}
    there = make(state)

    def healed(_: int) -> bool:
        got = heal(there, there)
        return all(torch.equal(got[name], tensor) for name, tensor in state.items())

    with ThreadPoolExecutor(40) as pool:
        assert all(pool.map(healed, range(40)))
    assert "refused" not in capfd.readouterr().err
