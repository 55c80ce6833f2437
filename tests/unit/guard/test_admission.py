"""Admission at the port that strangers can reach, with real sockets: the run is let in, strangers get nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import guarded_network
import pytest
from guarded_network import KEY, PATIENCE_S, Loop, descriptors, until

from ftslurm.guard import admission as admissions
from ftslurm.guard.admission import Admission
from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.interfaces import Reach
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.guard.network import Network
from ftslurm.security import handshake, socket_owners


class Place(Loop):
    """A loop with an admission, and forwarders that lead to it."""

    def __init__(self) -> None:
        super().__init__()
        self.port: Admission = self.admission()
        self.host_port = self.port.host_port

    def offer(self, target: admissions.Target, service: str = "store") -> None:
        self.do(lambda: self.port.offer(service, target))

    def connect(self, address: str = "", key: bytes = KEY) -> socket.socket:
        """Connect through a forwarder to an address."""
        made = self.forwarder(address or f"{self.host_port}/store", key, moves=False)
        return connect(int(made.url.rpartition(":")[2]))

    def stranger(self) -> socket.socket:
        return connect(int(self.host_port.rpartition(":")[2]))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def ended(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1000) == b""
    return True


def taken(channel: socket.socket) -> socket.socket:
    """Return the next connection that is handed over."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise OSError("it is closed")
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
def offered(request: pytest.FixtureRequest, place: Place) -> Iterator[None]:
    """A server behind the admission, as the service `store`."""
    if request.param == "takes over":
        ours, theirs = pair()
        target: admissions.Target = ours
        server = echo(theirs, lambda: taken(theirs))
    else:
        listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        target, server = FilteredListener(listener.dup()), echo(listener)
    with server:
        place.offer(target)
        yield


@pytest.mark.usefixtures("offered")
def test_the_run_gets_through_both_guards(place: Place) -> None:
    for _ in range(5):
        with place.connect() as way:
            for words in (b"abc", b"x" * 300_000):
                way.sendall(words)
                got = b""
                while len(got) < len(words):
                    got += way.recv(65536)
                assert got == words.upper()
    assert not place.refusals.told


def test_who_is_early_waits_for_the_server(place: Place) -> None:
    with place.connect() as way:
        way.sendall(b"early")
        time.sleep(0.3)
        ours, theirs = pair()
        with echo(theirs, lambda: taken(theirs)):
            place.offer(ours)
            assert way.recv(100) == b"EARLY"


def test_a_connection_that_is_handed_over_costs_the_guard_nothing_more(place: Place) -> None:
    ours, theirs = pair()
    with echo(theirs, lambda: taken(theirs)):
        place.offer(ours)
        with place.connect() as way:
            way.sendall(b"abc")
            assert way.recv(100) == b"ABC"
            until(lambda: not place.port.tasks)
            asyncio.run_coroutine_threadsafe(place.port.close(), place.loop).result(PATIENCE_S)
            way.sendall(b"def")
            assert way.recv(100) == b"DEF"


def test_a_server_that_is_busy_gets_a_connection_when_it_can_take_it(place: Place) -> None:
    ours, theirs = pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least
    place.offer(ours)
    with contextlib.ExitStack() as held:
        while not place.port.tasks:  # none waits for it
            assert len(place.listeners) < 1000
            way = held.enter_context(place.connect())
            way.sendall(b"abc")
            time.sleep(0.05)
        with echo(theirs, lambda: taken(theirs)):
            assert way.recv(100) == b"ABC"
        until(lambda: not place.port.tasks)


def test_a_server_that_is_gone_hangs_up(place: Place) -> None:
    ours, theirs = pair()
    theirs.close()
    place.offer(ours)
    with place.connect() as way:
        assert ended(way)


@pytest.mark.usefixtures("offered")
def test_a_stranger_is_hung_up_on_and_that_is_said_once(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admissions, "PROVE_WITHIN_S", 0.2)
    for words in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"x" * handshake.ANSWER, b"x" * 100_000):
        with place.stranger() as sock:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                sock.sendall(words)
            said = sock.recv(handshake.CHALLENGE)
            assert said.startswith(handshake.MAGIC)
            assert ended(sock)
            assert time.monotonic() - began < 5
    assert place.refusals.told == {"stranger"}
    assert capfd.readouterr().err.count("refused: a connection from 127.0.0.1") == 1


@pytest.mark.usefixtures("offered")
def test_one_with_another_runs_key_gets_nothing(place: Place) -> None:
    with place.connect(key=b"o" * 32) as way:
        way.sendall(b"abc")
        assert ended(way)
    until(lambda: "stranger" in place.refusals.told)


@pytest.mark.usefixtures("offered", "few")
def test_a_flood_does_not_keep_the_run_out(place: Place) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(3 * admissions.MOST_UNPROVEN):
            held.enter_context(place.stranger())
        with place.connect() as way:
            way.sendall(b"abc")
            assert way.recv(100) == b"ABC"
        until(lambda: "flood" in place.refusals.told)
        until(lambda: len(place.port.tasks) <= admissions.MOST_UNPROVEN)


def test_a_squatter_at_a_port_of_the_run_is_told_nothing(place: Place) -> None:
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
    with squatter, place.connect(f"127.0.0.1:{squatter.getsockname()[1]}/store") as way:
        way.sendall(b"what is meant for the run")
        assert ended(way)
        thread.join(PATIENCE_S)
    assert b"meant" not in b"".join(heard)
    assert heard[-1] == b""
    assert "server" in place.refusals.told


def test_nobody_but_its_guard_connects_to_an_inner_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inner = FilteredListener(listener.dup())
        if not inner.filtered:
            pytest.skip("this kernel attaches no filters")
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", inner.port), 0.3)
        for _ in range(3):
            with inner.admitted() as far:
                far.setblocking(True)
                far.connect(listener.getsockname())
            taken, _ = listener.accept()
            far.sendall(b"hello")
            assert taken.recv(10) == b"hello"
            taken.close()
            far.close()
        with pytest.raises(TimeoutError):  # still nobody
            socket.create_connection(("127.0.0.1", inner.port), 0.3)
        inner.close()


def test_whose_a_connection_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        near = connect(port)
        far, peer = listener.accept()
        for whose in (socket_owners.owner_of, socket_owners.from_tables):
            assert whose(peer, far.getsockname()) == (os.getuid(), os.fstat(near.fileno()).st_ino)
            assert whose(("127.0.0.1", 1), far.getsockname()) is None
            assert whose(peer, ("127.0.0.1", port + 1)) is None
        assert list(socket_owners.clients_of(port)) == [(peer, (os.getuid(), os.fstat(near.fileno()).st_ino))]
        near.close()
        until(lambda: socket_owners.owner_of(peer, far.getsockname()) is None)  # no holder any more
        assert socket_owners.from_tables(peer, far.getsockname()) is None
        far.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_forwarder_serves_its_owner_alone(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, echo(listener):
        made = place.forwarder(f"http://127.0.0.1:{listener.getsockname()[1]}")
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
        assert gateway.forwarder("elsewhere:29500") == "elsewhere:29500"
        way = gateway.forwarder(f"http://{place}/store")
        assert gateway.forwarder(f"{place}/store") == way
        with socket.create_server(("127.0.0.1", 0), backlog=50) as listener, echo(listener):
            gateway.publish("store", listener.getsockname()[1])
            with connect(int(way.rpartition(":")[2])) as sock:
                sock.sendall(b"abc")
                assert sock.recv(10) == b"ABC"
            with gateway.dial(f"{place}/store", PATIENCE_S) as sock:
                sock.settimeout(PATIENCE_S)
                sock.sendall(b"abc")
                assert sock.recv(10) == b"ABC"
            gateway.withdraw("store")
        with pytest.raises(ConnectionError, match=r"127.0.0.1:1/store: 127.0.0.1: Connection refused"):
            gateway.dial("127.0.0.1:1/store", PATIENCE_S)
        with pytest.raises(OSError, match="nonsense"):
            gateway._ask("nonsense")


# --- what a worker asks its guard ----------------------------------------------------------------------------------


@contextlib.contextmanager
def network(requests: socket.socket) -> Iterator[Network]:
    """Run a guard's network; at the end its thread, which has descriptors of its own, is gone too."""
    before = threading.enumerate()
    made = Network(requests, os.getpid())
    (thread,) = {*threading.enumerate()} - {*before}
    yield made
    made.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def questions() -> Iterator[socket.socket]:
    """A worker's end of the connection to its guard."""
    requests, ours = pair()
    with network(requests) as guards:
        guards.learn(KEY.hex())
        ours.settimeout(PATIENCE_S)
        yield ours


def test_the_answer_to_a_question_that_was_cut_short_is_not_taken_for_that_to_the_next_one() -> None:
    requests, questions = pair()
    with network(requests):
        questions.send(b'{"number": 0, "question": "forwarder", "address": "elsewhere:1"}')
        gateway = Gateway(questions)
        gateway.reach = Reach("127.0.0.1", "127.0.0.1")
        assert gateway.reserve().startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 4000,
        b'{"number": 1, "question": "publish"}',
        b'{"number": 1, "question": "take_over", "other": "store"}',
        b"\xff\xfe",
        b"[]",
    ],
)
def test_whatever_a_worker_says_its_guard_goes_on_and_keeps_no_descriptor(
    message: bytes, questions: socket.socket
) -> None:
    with socket.socket() as given:
        gc.collect()
        before = descriptors()
        socket.send_fds(questions, [message], [given.fileno()])
        assert b'"error"' in questions.recv(4096)
        until(lambda: descriptors() == before)  # the guard's thread has answered, and closes it a moment later


def test_a_guard_that_is_given_something_else_than_a_socket_closes_it(questions: socket.socket) -> None:
    out, into = os.pipe()
    gc.collect()
    before = descriptors()
    socket.send_fds(questions, [b'{"number": 1, "question": "take_over", "service": "store"}'], [out])
    assert b'"error"' in questions.recv(4096)
    until(lambda: descriptors() == before)
    os.close(out)
    os.close(into)


def test_a_worker_that_reads_no_answers_does_not_make_its_guard_wait(questions: socket.socket) -> None:
    for _ in range(2000):
        questions.send(b'{"number": 1, "question": "forwarder", "address": "elsewhere:1"}')
    while json.loads(questions.recv(4096))["number"] == 1:
        with contextlib.suppress(BlockingIOError):
            questions.send(b'{"number": 2, "question": "forwarder", "address": "elsewhere:1"}', socket.MSG_DONTWAIT)


def test_capital_letters_in_a_machines_name_keep_nobody_out(place: Place) -> None:
    port = place.admission("LocalHost")
    listener = socket.create_server(("127.0.0.1", 0))
    with echo(listener):
        place.do(lambda: port.offer("store", FilteredListener(listener.dup())))
        with place.connect(f"{port.host_port}/store") as sock:
            sock.sendall(b"abc")
            assert sock.recv(3) == b"ABC"


def test_where_the_kernel_knows_no_socket_at_all_its_tables_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert socket_owners.tells()
    socket_owners.tells.cache_clear()
    monkeypatch.setattr(socket_owners, "_look_up", lambda *_: None)  # what ENOENT comes to, without the module tcp_diag
    with socket.create_server(("127.0.0.1", 0)) as server, connect(server.getsockname()[1]) as client:
        try:
            found = socket_owners.owner_of(client.getsockname(), server.getsockname())
            assert found == (os.getuid(), os.fstat(client.fileno()).st_ino)
        finally:
            socket_owners.tells.cache_clear()


def test_a_connection_whose_end_says_no_more_is_still_somebodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, connect(server.getsockname()[1]) as client:
        client.shutdown(socket.SHUT_WR)
        owner = dict(socket_owners.clients_of(server.getsockname()[1]))[client.getsockname()]
        assert owner == (os.getuid(), os.fstat(client.fileno()).st_ino)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few connections be unproven at a time: one process cannot have as many as a flood."""
    monkeypatch.setattr(admissions, "MOST_UNPROVEN", 64)


@pytest.mark.usefixtures("few")
def test_a_flood_from_elsewhere_pushes_out_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "PROVE_WITHIN_S", PATIENCE_S)
    with place.stranger() as owner, contextlib.ExitStack() as held:
        flood = []
        for _ in range(admissions.MOST_UNPROVEN + 10):
            sock = held.enter_context(socket.socket())
            sock.bind(("127.0.0.2", 0))
            sock.connect(owner.getpeername())
            sock.settimeout(PATIENCE_S)
            assert sock.recv(handshake.CHALLENGE, socket.MSG_WAITALL).startswith(handshake.MAGIC)
            flood.append(sock)
        assert all(ended(sock) for sock in flood[:11])  # the oldest
        owner.settimeout(0.1)
        assert owner.recv(handshake.CHALLENGE, socket.MSG_WAITALL).startswith(handshake.MAGIC)
        for one in (owner, flood[11], flood[-1]):
            one.settimeout(0.1)
            with pytest.raises(TimeoutError):
                one.recv(1)


def test_hundreds_of_guards_that_dial_at_once_are_no_flood(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "PROVE_WITHIN_S", PATIENCE_S)
    port, guards = int(place.host_port.rpartition(":")[2]), []
    with contextlib.ExitStack() as held:
        for number in range(300):
            sock = held.enter_context(socket.socket())
            sock.bind((f"127.0.1.{number % 250 + 1}", 0))
            sock.settimeout(PATIENCE_S)
            sock.connect(("127.0.0.1", port))
            guards.append(sock)
        for sock in guards:  # busy as they are, they answer when all have come
            said = sock.recv(handshake.CHALLENGE, socket.MSG_WAITALL)
            sock.sendall(handshake.answer(KEY, said, f"{place.host_port}/store")[0])
        assert all(len(sock.recv(handshake.PROOF, socket.MSG_WAITALL)) == handshake.PROOF for sock in guards)
    assert not place.refusals.told


@pytest.mark.parametrize("early", [True, False])
def test_all_that_prove_themselves_at_once_get_to_their_server(
    place: Place, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admissions, "PROVE_WITHIN_S", PATIENCE_S)
    listener, ready = socket.create_server(("127.0.0.1", 0), backlog=200), threading.Event()
    with echo(listener), contextlib.ExitStack() as held:
        guards = [held.enter_context(place.stranger()) for _ in range(200)]  # loopback_filter.MOST are set up at a time
        if not early:
            place.offer(FilteredListener(listener.dup()))
        said = [sock.recv(handshake.CHALLENGE) for sock in guards]
        place.loop.call_soon_threadsafe(ready.wait, PATIENCE_S)  # it finds all answers at once
        for sock, challenge in zip(guards, said, strict=True):
            sock.sendall(handshake.answer(KEY, challenge, f"{place.host_port}/store")[0] + b"abc")
        ready.set()
        for sock in guards:
            assert len(sock.recv(handshake.PROOF)) == handshake.PROOF
        if early:
            place.offer(FilteredListener(listener.dup()))
        assert [sock.recv(3) for sock in guards] == [b"ABC"] * 200
