"""The gate, a port that strangers can reach, with real sockets: the run is let in, strangers get nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import guarded_network
import pytest

from ftslurm.guard import gate as gates
from ftslurm.guard.gate import Gate, TakesOver
from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.guard.network import Network
from ftslurm.guard.proxy import Proxy
from ftslurm.guard.sockets import Refusals, crowded_out
from ftslurm.security import handshake, socket_owners

KEY = b"k" * 32
PATIENCE_S = 20.0


class Loop(threading.Thread):
    """A guard's loop with one gate and doors, and its refusals."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.selector = selectors.PollSelector()
        self.refusals = Refusals()
        self.gate = Gate(self.selector, "127.0.0.1", lambda: KEY, self.refusals)
        self.doors: list[Proxy] = []
        self.todo: list[Callable[[], object]] = []
        self.over = False

    def run(self) -> None:
        while not self.over:
            due = min([0.01, self.gate.tend(), *(door.tend() for door in self.doors)])
            for key, events in self.selector.select(due):
                key.data(events)
            while self.todo:
                self.todo.pop(0)()
        for each in (*self.doors, self.gate):
            each.close()
        assert not self.selector.get_map()

    def do(self, what: Callable[[], object]) -> None:
        self.todo.append(what)
        until(lambda: what not in self.todo)

    def door(self, address: str, key: bytes = KEY) -> socket.socket:
        """Connect to a door that leads to an address."""
        made = Proxy(self.selector, address, key=lambda: key, refusals=self.refusals, moves=False)
        self.do(lambda: self.doors.append(made))
        return connect(int(made.url.rpartition(":")[2]))


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    made.gate.open()
    made.start()
    yield made
    made.over = True
    made.join(PATIENCE_S)
    assert not made.is_alive()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def stranger(loop: Loop) -> socket.socket:
    return connect(int(loop.gate.host_port.rpartition(":")[2]))


def ended(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1000) == b""
    return True


def taken(channel: socket.socket) -> socket.socket:
    """Return the next connection that a gate hands over."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise OSError("the gate is closed")
    sock = socket.socket(fileno=descriptors[0])
    sock.setblocking(True)
    return sock


@contextlib.contextmanager
def echo(server: socket.socket, take: Callable[[], socket.socket] | None = None) -> Iterator[None]:
    """Answer each message with its text in capitals. `take` returns the next connection; None: it is accepted."""
    take = take or (lambda: server.accept()[0])

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            while data := sock.recv(65536):
                sock.sendall(data.upper())

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(take(),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.fixture(params=["takes over", "loopback"])
def offered(request: pytest.FixtureRequest, loop: Loop) -> Iterator[None]:
    """A server behind the gate, as the service `store`."""
    if request.param == "takes over":
        ours, theirs = pair()
        target: gates.Target = TakesOver(ours)
        server = echo(theirs, lambda: taken(theirs))
    else:
        listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        target, server = FilteredListener(listener.dup()), echo(listener)
    with server:
        loop.do(lambda: loop.gate.offer("store", target))
        yield


@pytest.mark.usefixtures("offered")
def test_the_run_gets_through_both_guards(loop: Loop) -> None:
    for _ in range(5):
        with loop.door(f"{loop.gate.host_port}/store") as way:
            for words in (b"abc", b"x" * 300_000):
                way.sendall(words)
                got = b""
                while len(got) < len(words):
                    got += way.recv(65536)
                assert got == words.upper()
    assert loop.refusals.counts == {}


def test_who_is_early_waits_for_the_server(loop: Loop) -> None:
    with loop.door(f"{loop.gate.host_port}/store") as way:
        way.sendall(b"early")
        until(lambda: any(guest.wants for guest in list(loop.gate.guests)))
        ours, theirs = pair()
        with echo(theirs, lambda: taken(theirs)):
            loop.do(lambda: loop.gate.offer("store", TakesOver(ours)))
            assert way.recv(100) == b"EARLY"


def test_a_connection_that_is_handed_over_costs_the_guard_nothing_more(loop: Loop) -> None:
    ours, theirs = pair()
    with echo(theirs, lambda: taken(theirs)):
        loop.do(lambda: loop.gate.offer("store", TakesOver(ours)))
        with loop.door(f"{loop.gate.host_port}/store") as way:
            way.sendall(b"abc")
            assert way.recv(100) == b"ABC"
            until(lambda: not loop.gate.guests)
            loop.do(loop.gate.close)
            way.sendall(b"def")
            assert way.recv(100) == b"DEF"


def test_a_server_that_is_busy_gets_a_connection_when_it_can_take_it(loop: Loop) -> None:
    ours, theirs = pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least
    loop.do(lambda: loop.gate.offer("store", TakesOver(ours)))
    with contextlib.ExitStack() as held:
        while not any(guest.wants for guest in list(loop.gate.guests)):
            assert len(loop.doors) < 1000
            way = held.enter_context(loop.door(f"{loop.gate.host_port}/store"))
            way.sendall(b"abc")
            time.sleep(0.02)
        with echo(theirs, lambda: taken(theirs)):
            assert way.recv(100) == b"ABC"
        assert not loop.gate.guests


def test_a_server_that_is_gone_hangs_up(loop: Loop) -> None:
    ours, theirs = pair()
    theirs.close()
    loop.do(lambda: loop.gate.offer("store", TakesOver(ours)))
    with loop.door(f"{loop.gate.host_port}/store") as way:
        assert ended(way)


@pytest.mark.usefixtures("offered")
def test_a_stranger_is_hung_up_on_and_that_is_said_once(
    loop: Loop, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "PROVE_WITHIN_S", 0.2)
    for words in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"x" * handshake.ANSWER, b"x" * 100_000):
        with stranger(loop) as sock:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                sock.sendall(words)
            said = sock.recv(handshake.CHALLENGE)
            assert said.startswith(handshake.MAGIC)
            assert ended(sock)
            assert time.monotonic() - began < 5
    assert loop.refusals.counts["stranger"] >= 3
    assert capfd.readouterr().err.count("refused: a connection from 127.0.0.1") == 1


@pytest.mark.usefixtures("offered")
def test_one_with_another_runs_key_gets_nothing(loop: Loop) -> None:
    with loop.door(f"{loop.gate.host_port}/store", key=b"o" * 32) as way:
        way.sendall(b"abc")
        assert ended(way)
    until(lambda: "stranger" in loop.refusals.counts)


@pytest.mark.usefixtures("offered")
def test_a_flood_does_not_keep_the_run_out(loop: Loop) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(3 * gates.MOST_STRANGERS):
            held.enter_context(stranger(loop))
        with loop.door(f"{loop.gate.host_port}/store") as way:
            way.sendall(b"abc")
            assert way.recv(100) == b"ABC"
        until(lambda: loop.refusals.counts.get("flood"))
        assert len([guest for guest in list(loop.gate.guests) if guest.is_stranger]) <= gates.MOST_STRANGERS


def test_a_squatter_at_a_port_of_the_run_is_told_nothing(loop: Loop) -> None:
    squatter = socket.create_server(("127.0.0.1", 0))
    heard = []

    def squat() -> None:
        sock, _ = squatter.accept()
        with sock:
            sock.sendall(handshake.challenge())
            heard.append(sock.recv(handshake.ANSWER, socket.MSG_WAITALL))
            sock.sendall(b"p" * handshake.PROOF)
            heard.append(sock.recv(1000))

    thread = threading.Thread(target=squat, daemon=True)
    thread.start()
    with squatter, loop.door(f"127.0.0.1:{squatter.getsockname()[1]}/store") as way:
        way.sendall(b"what is meant for the run")
        assert ended(way)
        thread.join(PATIENCE_S)
    assert b"meant" not in b"".join(heard)
    assert heard[-1] == b""
    assert "server" in loop.refusals.counts


def test_nobody_but_its_guard_connects_to_an_inner_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inner = FilteredListener(listener.dup())
        if not inner.filtered:
            pytest.skip("this kernel attaches no filters")
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", inner.port), 0.3)
        for _ in range(3):
            with inner.dial() as far:
                taken, _ = listener.accept()
                inner.settled(far)
                far.setblocking(True)
                far.sendall(b"hello")
                assert taken.recv(10) == b"hello"
                taken.close()
        with pytest.raises(TimeoutError):  # still nobody
            socket.create_connection(("127.0.0.1", inner.port), 0.3)
        inner.close()


def test_whose_a_connection_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        near = connect(port)
        far, peer = listener.accept()
        for whose in (socket_owners.uids_of_clients, socket_owners.from_tables):
            assert whose([peer, ("127.0.0.1", 1)], far.getsockname()) == [os.getuid(), None]
            assert whose([peer], ("127.0.0.1", port + 1)) == [None]
        assert list(socket_owners.clients_of(port)) == [(peer, os.getuid())]
        near.close()
        until(lambda: socket_owners.uids_of_clients([peer], far.getsockname()) == [None])  # no holder any more
        assert socket_owners.from_tables([peer], far.getsockname()) == [None]
        far.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_door_serves_its_owner_alone(loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, echo(listener):
        made = Proxy(loop.selector, f"http://127.0.0.1:{listener.getsockname()[1]}", refusals=loop.refusals)
        loop.do(lambda: loop.doors.append(made))
        port = int(made.url.rpartition(":")[2])
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            sock = connect(port)
            with contextlib.suppress(OSError):
                sock.sendall(b"let me in")
            os._exit(0 if ended(sock) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with connect(port) as ours:
            ours.sendall(b"abc")
            assert ours.recv(10) == b"ABC"
    assert "refused: a connection of user 65534 to this worker's way" in capfd.readouterr().err


def test_what_a_worker_asks_its_guard() -> None:
    with guarded_network.asked(KEY, b"\xff" * 32) as gateway:
        place = gateway.reserve()
        assert gateway.reserve() == place
        assert gateway.key() == KEY
        assert gateway.door("elsewhere:29500") == "elsewhere:29500"
        way = gateway.door(f"http://{place}/store")
        assert gateway.door(f"{place}/store") == way
        with socket.create_server(("127.0.0.1", 0), backlog=50) as listener, echo(listener):
            gateway.publish("store", listener.fileno())
            with connect(int(way.rpartition(":")[2])) as sock:
                sock.sendall(b"abc")
                assert sock.recv(10) == b"ABC"
            gateway.withdraw("store")
        with pytest.raises(OSError, match="no such question"):
            gateway._ask("nonsense")


def test_the_port_asked_for_is_had_or_said(tmp_path: Path) -> None:
    selector = selectors.PollSelector()
    gate = Gate(selector, "127.0.0.1", lambda: KEY, Refusals())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            gate.open(taken.getsockname()[1])
        port = taken.getsockname()[1]
    assert gate.open(port) == f"127.0.0.1:{port}"
    gate.close()


# --- what a worker asks its guard ----------------------------------------------------------------------------------


class Asked:
    """A guard that answers when the test lets it."""

    def __init__(self) -> None:
        self.requests, questions = pair()
        self.network = Network(selectors.PollSelector(), self.requests, "127.0.0.1")
        self.network.learn(KEY.hex())
        self.gateway = Gateway(questions)
        self.questions = questions

    def say(self, data: bytes, *descriptors: int) -> bytes:
        """Send a message to the guard; return its answer."""
        socket.send_fds(self.questions, [data], descriptors)
        self.network._asked(selectors.EVENT_READ)
        return self.questions.recv(4096)


def test_an_answer_that_came_too_late_is_not_taken_for_that_to_the_next_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked()
    monkeypatch.setattr("ftslurm.guard.gateway.PATIENCE_S", 0.05)
    with pytest.raises(TimeoutError):
        asked.gateway.key()  # the guard has been stopped
    monkeypatch.setattr("ftslurm.guard.gateway.PATIENCE_S", PATIENCE_S)
    asked.network._asked(selectors.EVENT_READ)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asked.gateway.reserve()), daemon=True)
    thread.start()
    assert select.select([asked.requests], [], [], PATIENCE_S)[0]
    asked.network._asked(selectors.EVENT_READ)
    thread.join(PATIENCE_S)
    assert found == [asked.network.gate.host_port]
    asked.network.gate.close()


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 4000,
        b'{"number": 1, "question": "reserve", "port": 70000}',
        b'{"number": 1, "question": "reserve", "port": 1e999}',
        b'{"number": 1, "question": "publish", "service": "store"}',
        b'{"number": 1, "question": "take_over", "service": "store"}',
        b"\xff\xfe",
        b"[]",
    ],
)
def test_whatever_a_worker_says_its_guard_goes_on_and_keeps_no_descriptor(message: bytes) -> None:
    asked, (out, into) = Asked(), os.pipe()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    assert b'"error"' in asked.say(message, out)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(out)
    os.close(into)


def test_a_worker_that_reads_no_answers_does_not_make_its_guard_wait() -> None:
    asked = Asked()
    for _ in range(2000):
        asked.questions.send(b'{"number": 1, "question": "key"}')
        asked.network._asked(selectors.EVENT_READ)


def test_capital_letters_in_a_machines_name_keep_nobody_out(loop: Loop) -> None:
    gate = Gate(loop.selector, "LocalHost", lambda: KEY, loop.refusals)
    loop.do(gate.open)
    listener = socket.create_server(("127.0.0.1", 0))
    with echo(listener):
        loop.do(lambda: gate.offer("store", FilteredListener(listener.dup())))
        sock = loop.door(f"{gate.host_port}/store")
        sock.sendall(b"abc")
        assert sock.recv(3) == b"ABC"
    loop.do(gate.close)


def test_where_the_kernel_knows_no_socket_at_all_its_tables_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert socket_owners.tells()
    socket_owners.tells.cache_clear()
    monkeypatch.setattr(socket_owners, "_look_up", lambda *_: None)  # what ENOENT comes to, without the module tcp_diag
    with socket.create_server(("127.0.0.1", 0)) as server, connect(server.getsockname()[1]) as client:
        try:
            assert socket_owners.uids_of_clients([client.getsockname()], server.getsockname()) == [os.getuid()]
        finally:
            socket_owners.tells.cache_clear()


def test_a_connection_whose_end_says_no_more_is_still_somebodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, connect(server.getsockname()[1]) as client:
        client.shutdown(socket.SHUT_WR)
        assert (client.getsockname(), os.getuid()) in list(socket_owners.clients_of(server.getsockname()[1]))


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["owner", *["flood"] * 63], 1),  # a flood from elsewhere pushes out its own
        (["flood", "flood", "owner", "flood"], 0),
        (["a", "b", "b", "a", "c"], 0),
        (["a", "b", "b"], 1),
        (["a"], 0),
        (["same"] * 64, 0),  # from the owner's own host: the oldest
    ],
)
def test_in_a_flood_the_oldest_of_the_busiest_host_gives_way(hosts: list[str], expected: int) -> None:
    assert crowded_out(hosts) == expected
