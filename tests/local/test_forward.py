"""The forwarder to the Lighthouse, with real sockets: data gets through, also when the Lighthouse moves."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from guarded_network import PATIENCE_S, Loop, until

from ftslurm.guard import forwarder as forwarders
from ftslurm.guard.forwarder import Forwarder


class Way:
    """A forwarder in a loop of its own, as in a guard."""

    def __init__(self, url: str, moves: bool = True) -> None:
        self.loop = Loop()
        self.forwarder: Forwarder = self.loop.forwarder(url, moves=moves)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", int(self.forwarder.url.rpartition(":")[2])), PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def go_to(self, url: str) -> None:
        self.loop.do(lambda: self.forwarder.go_to(url))


@pytest.fixture
def way_to() -> Iterator[Callable[..., Way]]:
    ways: list[Way] = []

    def begin(url: str, **words: bool) -> Way:
        ways.append(Way(url, **words))
        return ways[-1]

    yield begin
    for one in ways:
        one.loop.close()


def listen(port: int = 0) -> socket.socket:
    sock = socket.create_server(("127.0.0.1", port), backlog=200)
    sock.settimeout(PATIENCE_S)
    return sock


def url_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


def taken(listener: socket.socket) -> socket.socket:
    sock, _ = listener.accept()
    sock.settimeout(PATIENCE_S)
    return sock


def closed_port() -> int:
    with listen() as sock:
        return int(sock.getsockname()[1])


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def echo(listener: socket.socket, name: bytes = b"") -> None:
    """Send a name on every connection, then echo every byte, until the listener is closed."""

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            sock.sendall(name)
            while data := sock.recv(65536):
                sock.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(taken(listener),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def test_bytes_pass_both_ways_unchanged_and_each_side_may_end_first(way_to: Callable[..., Way]) -> None:
    listener = listen()
    way = way_to(url_of(listener))
    near = way.connect()
    far = taken(listener)
    text = random.Random(0).randbytes(5_000_000)
    for source, target in ((near, far), (far, near)):
        writer = threading.Thread(target=lambda s=source: (s.sendall(text), s.shutdown(socket.SHUT_WR)))
        writer.start()
        got = hashlib.sha256()
        while data := target.recv(1 << 16):  # also after `near` has closed its sending side: it still receives
            got.update(data)
        writer.join()
        assert got.digest() == hashlib.sha256(text).digest()
    until(lambda: not way.forwarder.tasks)


def test_a_reader_that_is_slow_holds_the_writer_up_and_nothing_piles_up(way_to: Callable[..., Way]) -> None:
    listener = listen()
    way = way_to(url_of(listener))
    near = way.connect()
    far = taken(listener)
    near.setblocking(False)
    sent, idle = 0, time.monotonic()
    while time.monotonic() < idle + 0.3 and sent < 30_000_000:
        with contextlib.suppress(BlockingIOError):
            sent += near.send(b"x" * 65536)
            idle = time.monotonic()
    assert sent < 30_000_000  # what the kernel's buffers take
    before = way.loop.cpu_s()
    time.sleep(0.3)
    assert way.loop.cpu_s() - before < 0.1  # no busy loop meanwhile
    got = 0
    while got < sent:
        got += len(far.recv(1 << 20))
    assert got == sent
    far.sendall(b"back")  # the other direction was never in its way
    near.settimeout(PATIENCE_S)
    assert near.recv(10) == b"back"


def test_while_nobody_is_there_connections_are_held_and_then_put_through(way_to: Callable[..., Way]) -> None:
    port = closed_port()
    way = way_to(f"http://127.0.0.1:{port}")
    ends = [way.connect() for _ in range(20)]
    for number, end in enumerate(ends):
        end.sendall(b"%d," % number)
    gone = way.connect()
    gone.sendall(b"never mind")
    gone.close()  # has given up: must not be put through later
    time.sleep(0.4)
    before = way.loop.cpu_s()
    time.sleep(0.2)
    assert way.loop.cpu_s() - before < 0.1
    with listen(port) as listener:
        began = time.monotonic()
        got = {taken(listener).recv(10) for _ in ends}
        assert time.monotonic() - began < 5.0  # measured: 25 ms
        assert got == {b"%d," % number for number in range(20)}
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            taken(listener)


def test_when_it_moves_old_connections_end_and_new_ones_go_to_the_new_place(way_to: Callable[..., Way]) -> None:
    first, second = listen(), listen()
    way = way_to(url_of(first))
    near = way.connect()
    far = taken(first)
    far.sendall(b"last words")
    assert near.recv(100) == b"last words"
    way.go_to(url_of(second))
    assert ended(near)
    assert ended(far)
    near = way.connect()
    near.sendall(b"hello")
    assert taken(second).recv(10) == b"hello"
    way.go_to(url_of(second))  # its current address: no effect
    time.sleep(0.1)
    near.sendall(b"!")
    assert len(way.forwarder.tasks) == 1


def test_while_it_is_nowhere_connections_are_held_and_nobody_dials(way_to: Callable[..., Way]) -> None:
    listener = listen()
    way = way_to("")
    near = way.connect()
    near.sendall(b"hello")
    time.sleep(0.1)
    way.go_to(url_of(listener))
    far = taken(listener)
    assert far.recv(10) == b"hello"
    way.go_to("")
    assert ended(near)
    again = way.connect()
    again.sendall(b"again")
    listener.settimeout(0.3)
    with pytest.raises(TimeoutError):
        taken(listener)
    listener.settimeout(PATIENCE_S)
    way.go_to(url_of(listener))
    assert taken(listener).recv(10) == b"again"


def test_held_connections_go_where_it_has_moved_to(way_to: Callable[..., Way]) -> None:
    way = way_to(f"http://127.0.0.1:{closed_port()}")
    near = way.connect()
    near.sendall(b"hello")
    time.sleep(0.1)
    with listen() as there:
        way.go_to(url_of(there))
        assert taken(there).recv(10) == b"hello"


@pytest.mark.parametrize("how", [reset, socket.socket.close])
def test_whoever_hangs_up_the_other_side_sees_it(
    way_to: Callable[..., Way], how: Callable[[socket.socket], None]
) -> None:
    listener = listen()
    way = way_to(url_of(listener))
    for near_first in (True, False):
        near = way.connect()
        near.sendall(b"x")
        far = taken(listener)
        far.recv(1)
        one, other = (near, far) if near_first else (far, near)
        how(one)
        other.settimeout(PATIENCE_S)
        assert ended(other)
        other.close()
        until(lambda: not way.forwarder.tasks)


@pytest.mark.parametrize("moves", [12, pytest.param(40, marks=pytest.mark.nightly)])
def test_it_moves_again_and_again_under_load_and_no_answer_is_mixed_up(way_to: Callable[..., Way], moves: int) -> None:
    listeners = [listen() for _ in range(3)]
    for number, listener in enumerate(listeners):
        echo(listener, b"%d" % number)
    way = way_to(url_of(listeners[0]))
    over = threading.Event()
    wrong: list[object] = []
    rounds = [0] * 8

    def ask(thread: int) -> None:
        chance = random.Random(thread)
        while not over.is_set():
            with contextlib.suppress(ConnectionError), way.connect() as near:
                name = near.recv(1)
                while name and not over.is_set():
                    text = chance.randbytes(chance.randrange(1, 100_000))
                    writer = threading.Thread(target=_send, args=(near, text))
                    writer.start()
                    got = b""
                    while len(got) < len(text) and (data := near.recv(1 << 16)):
                        got += data
                    writer.join()
                    if not text.startswith(got):
                        wrong.append((thread, name))
                    if len(got) < len(text):
                        break  # it has moved
                    rounds[thread] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(rounds))]
    for thread in threads:
        thread.start()
    for number in range(moves):
        time.sleep(0.03)
        way.go_to(url_of(listeners[number % 3]))
    time.sleep(0.2)
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not wrong
    assert min(rounds) > 5, rounds


def _send(sock: socket.socket, text: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(text)


def test_a_name_is_looked_up_aside_and_looked_up_again_if_that_fails(
    way_to: Callable[..., Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen()
    port = listener.getsockname()[1]
    real = forwarders.resolve

    def slow(host: str) -> list[str]:
        if host == "slow":
            time.sleep(4)
        return real("127.0.0.1" if host == "known" else host)

    monkeypatch.setattr(forwarders, "resolve", slow)
    way = way_to(f"http://slow:{port}")
    near = way.connect()
    near.sendall(b"hello")
    time.sleep(0.2)
    began = time.monotonic()
    way.go_to(f"http://no-such-host.invalid:{port}")
    time.sleep(0.3)
    way.go_to(f"http://known:{port}")
    assert taken(listener).recv(10) == b"hello"
    assert time.monotonic() - began < 3  # it goes on while the first name is looked up


def test_of_several_addresses_the_one_that_answers_is_found(
    way_to: Callable[..., Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen()
    port = listener.getsockname()[1]
    monkeypatch.setattr(forwarders, "resolve", lambda _: ["::1", "127.0.0.1"])
    way = way_to(f"http://somewhere:{port}")
    ends = [way.connect() for _ in range(3)]
    for end in ends:
        end.sendall(b"x")
    assert [taken(listener).recv(1) for _ in ends] == [b"x"] * 3


# --- servers that cannot be reached ----------------------------------------------------------------------------------


def deaf() -> Iterator[str]:
    """Yield the address of a port that answers nobody, as behind a firewall."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        full = []
        for _ in range(3):
            full.append(socket.socket())
            full[-1].setblocking(False)
            full[-1].connect_ex(listener.getsockname())
        yield url_of(listener)
        for one in full:
            one.close()


def closed() -> Iterator[str]:
    with listen() as listener:
        url = url_of(listener)
    yield url


def nameless() -> Iterator[str]:
    yield "http://node-of-nobody.invalid:4711/lighthouse"


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("place", [deaf, closed, nameless])
def test_a_server_that_is_out_of_reach_is_named_once_while_a_client_waits(
    place: Callable[[], Iterator[str]], moves: bool, way_to: Callable[..., Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TELL_S", 0.4)
    monkeypatch.setattr(forwarders, "DIAL_FOR_S", 0.5)
    with contextlib.contextmanager(place)() as url:
        one = way_to(url, moves=moves)
        told = one.loop.warnings
        time.sleep(0.6)
        assert not told  # nobody waits
        with one.connect():
            time.sleep(1.2)
    if place is closed and not moves:
        assert not told  # the client has been told at once: its connection was closed
        return
    (words,) = told
    assert words.startswith(f"cannot reach {url} (")
    assert "cluster.interface=" in words
    why = {deaf: "Connection timed out", closed: "127.0.0.1: Connection refused", nameless: "no address of that name"}
    assert why[place] in words


def test_a_server_that_was_reached_and_is_away_is_not_told(
    way_to: Callable[..., Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TELL_S", 0.3)
    with listen() as listener:
        one = way_to(url_of(listener))
        told = one.loop.warnings
        with one.connect() as client:
            client.sendall(b"x")
            taken(listener).close()
    with one.connect():
        time.sleep(0.8)
        assert not told  # the controller knows of a Lighthouse that is gone
        one.go_to("http://node-of-nobody.invalid:4711/lighthouse")  # where it is now
        time.sleep(0.8)
    assert len(told) == 1
