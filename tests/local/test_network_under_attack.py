"""A guard's network while connections misbehave: the run gets through, and nothing of the others is left."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded_network import KEY, PATIENCE_S, Loop, descriptors, until
from process_cost import cpu_s

from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.interfaces import Reach
from ftslurm.security import handshake

QUIET_S = 5.0  # until the last time limit has passed

GUARD = """
import os, signal, socket, sys
from ftslurm.guard import admission
from ftslurm.guard.network import Network

admission.OFFERED_WITHIN_S = 1.0
Network(socket.socket(fileno=int(sys.argv[1])), os.getpid()).learn(sys.argv[2])
while True:
    signal.pause()
"""


class Guard:
    """The network of a guard in a process of its own, and an echoing server that it publishes."""

    def __init__(self, log: Path) -> None:
        requests, questions = pair()
        self.log, self.gateway = log, Gateway(questions)
        # Not a fork: other tests have left threads here, and what they hold at that moment would be held for ever.
        with log.open("w") as sink:
            argv = [sys.executable, "-c", GUARD, str(requests.fileno()), KEY.hex()]
            self.process = subprocess.Popen(argv, pass_fds=[requests.fileno()], stderr=sink)
        self.pid = self.process.pid
        requests.close()
        self.gateway.reach = Reach("127.0.0.1", "127.0.0.1")
        self.address = self.gateway.reserve()
        self.server = socket.create_server(("127.0.0.1", 0), backlog=500)
        self.gateway.publish("store", self.server.getsockname()[1])
        threading.Thread(target=self._echo, daemon=True).start()
        self.port = int(self.address.rpartition(":")[2])
        self.forwarder = self.port_to(f"{self.address}/store")
        self.nowhere = self.port_to("127.0.0.1:1/store")
        self.trains()
        time.sleep(0.3)  # until that connection is closed
        self.before = self.descriptors()

    def _echo(self) -> None:
        def serve(sock: socket.socket) -> None:
            with contextlib.suppress(OSError), sock:
                while data := sock.recv(65536):
                    sock.sendall(data)

        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(self.server.accept()[0],), daemon=True).start()

    def port_to(self, address: str) -> int:
        return int(self.gateway.forwarder(address).rpartition(":")[2])

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def trains(self) -> None:
        """See that the run gets through: as torch does, by dialling again when it was pushed out of a flood."""
        deadline, text = time.monotonic() + PATIENCE_S, random.Random(0).randbytes(300_000)
        while True:
            got = b""
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", self.forwarder)) as sock:
                sock.settimeout(PATIENCE_S)
                writer = threading.Thread(target=lambda: _send(sock, text))
                writer.start()
                while len(got) < len(text) and (data := sock.recv(65536)):
                    got += data
                writer.join()
            assert text.startswith(got)
            if got == text:
                return
            assert time.monotonic() < deadline

    def is_clean(self) -> None:
        """See that nothing is left of the connections that have ended, and that no error was met."""
        deadline = time.monotonic() + QUIET_S
        while self.descriptors() > self.before:
            assert time.monotonic() < deadline, (self.descriptors(), self.before)
            time.sleep(0.05)
        self.trains()
        before = cpu_s(self.pid)
        time.sleep(0.5)
        assert cpu_s(self.pid) - before < 0.1  # it rests
        assert "rror" not in self.log.read_text()


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    made = Guard(tmp_path / "log")
    yield made
    made.process.kill()
    made.process.wait()
    made.server.close()


def _send(sock: socket.socket, text: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(text)


def misbehave(guard: Guard, chance: random.Random) -> None:
    """Make one connection that does anything, in any order: as a stranger, or as one of the run that breaks."""
    port = chance.choice([guard.port, guard.port, guard.forwarder, guard.nowhere])
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2.0) as sock:
        for _ in range(chance.randrange(8)):
            match chance.randrange(8):
                case 0:
                    sock.sendall(chance.randbytes(chance.choice([1, 47, handshake.ANSWER, 100_000])))
                case 1:
                    said = sock.recv(handshake.CHALLENGE, socket.MSG_WAITALL)
                    service = chance.choice(["store", "store", "nothing", "\x7f"])
                    key = chance.choice([KEY, KEY, b"other"])
                    sock.sendall(handshake.answer(key, said, f"{guard.address}/{service}")[0])
                case 2:
                    sock.recv(chance.choice([1, 1000]), socket.MSG_DONTWAIT)
                case 3:
                    sock.shutdown(chance.choice([socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR]))
                case 4:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                case 5:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                case _:
                    time.sleep(chance.choice([0, 0.001, 0.05]))


@pytest.mark.parametrize(
    ("seed", "each"), [(0, 15), *(pytest.param(n, 60, marks=pytest.mark.nightly) for n in range(10))]
)
def test_whatever_connections_do_the_run_gets_through_and_nothing_is_left(guard: Guard, seed: int, each: int) -> None:
    def attack(number: int) -> None:
        chance = random.Random(1000 * seed + number)
        for _ in range(each):
            misbehave(guard, chance)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    guard.trains()
    for thread in threads:
        thread.join()
    guard.is_clean()


def test_without_descriptors_it_waits_and_goes_on_when_there_are_some(guard: Guard) -> None:
    hard = resource.prlimit(guard.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(guard.pid, resource.RLIMIT_NOFILE, (guard.before + 3, hard))
    ends = [socket.create_connection(("127.0.0.1", port)) for port in (guard.port, guard.forwarder) for _ in range(20)]
    time.sleep(0.5)
    before = cpu_s(guard.pid)
    time.sleep(1.0)
    assert cpu_s(guard.pid) - before < 0.2
    resource.prlimit(guard.pid, resource.RLIMIT_NOFILE, (hard, hard))
    guard.trains()
    for end in ends:
        end.close()
    guard.is_clean()


@pytest.mark.parametrize("which", ["forwarder", "nowhere"])
def test_of_what_nobody_takes_it_holds_little(guard: Guard, which: str) -> None:
    before, ends = guard.memory_mb(), []
    for _ in range(16):
        ends.append(socket.create_connection(("127.0.0.1", getattr(guard, which))))
        ends[-1].settimeout(0.1)
        with contextlib.suppress(OSError):
            ends[-1].sendall(b"x" * 20_000_000)  # and never reads what comes back
    assert guard.memory_mb() - before < 16
    for end in ends:
        end.close()
    guard.is_clean()


def test_a_listener_that_is_closed_leaves_nothing_whatever_its_connections_do() -> None:
    for number in range(40):
        before, loop = descriptors(), Loop()
        server = socket.create_server(("127.0.0.1", 0))
        port = loop.admission()
        ways = [loop.forwarder(f"{port.host_port}/store", moves=False), loop.forwarder(f"http://127.0.0.1:{_closed()}")]
        ends = [socket.create_connection(way.address) for way in ways for _ in range(10)]
        for end in ends:
            end.sendall(b"x")
        time.sleep(0.0005 * number)
        loop.close()
        for end in (*ends, server):
            end.close()
        until(lambda: descriptors() <= before)  # noqa: B023


def _closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
