"""Imitates the managers of many replica groups towards one Lighthouse, from one thread.

A real manager (torchft's Rust `ManagerServer`) costs its machine ten times as much CPU time for a request as this does:
a thousand of them on one machine would measure themselves. Each imitated one has a TCP connection of its own, speaks
gRPC over HTTP/2 with prepared bytes, sends heartbeats at its interval and asks for quorums; it counts what it receives
and reads of a quorum only its id and its size.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import manager_requests
from hpack import Encoder, HeaderTuple, NeverIndexedHeaderTuple

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.grpc_server import PREFACE
from ftslurm.lighthouse.quorum import Member
from ftslurm.security import handshake

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_WINDOW = 2**31 - 1
_REFILL = 1 << 24  # bytes of answers after which the server may send as many more
_BUFFER = 1 << 18


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


class _Headers:
    """The headers of the requests. The first heartbeat fills the server's table, later requests refer to it."""

    def __init__(self, authority: str) -> None:
        encoder = Encoder()
        rows: dict[str, list[HeaderTuple | tuple[str, str]]] = {}
        for method, kind in (("Heartbeat", HeaderTuple), ("Quorum", NeverIndexedHeaderTuple)):
            rows[method] = [
                *((":method", "POST"), (":scheme", "http"), kind(":path", f"/{protobuf.SERVICE}/{method}")),
                *((":authority", authority), ("te", "trailers"), ("content-type", "application/grpc")),
                ("user-agent", "tonic/0.12.3"),
            ]
        self.first = encoder.encode(rows["Heartbeat"])
        self.later = {method: encoder.encode(row) for method, row in rows.items()}


@dataclass
class Answer:
    """One answer to a request for a quorum."""

    manager: int
    quorum: int  # its id
    size: int  # bytes
    at: float  # time.perf_counter() when its last byte had come


class _Manager:
    """One connection."""

    def __init__(self, number: int, connection: socket.socket, headers: _Headers, answered: Callable[[Answer], None]):
        self.number = number
        self.name = member(number).replica_id
        self.connection = connection
        self.headers = headers
        self.answered = answered
        self.stream = -1
        self.asked = 0  # the stream of the request for a quorum that is under way
        self.head = b""  # the first bytes of its answer
        self.size = 0
        self.pending = b""  # received, less than a frame
        self.skip = 0  # bytes of a frame's payload that are still to come
        self.skipped_ends: int | None = None  # the stream that ends after them
        self.received = 0
        connection.sendall(
            PREFACE
            + _frame(_SETTINGS, 0, 0, b"\0\4" + _WINDOW.to_bytes(4, "big"))
            + _frame(_WINDOW_UPDATE, 0, 0, (_WINDOW - 65535).to_bytes(4, "big"))
        )
        connection.setblocking(False)
        self.heartbeat_message = _message(manager_requests.heartbeat(self.name))
        self.heartbeat()

    def heartbeat(self) -> None:
        self._request("Heartbeat", self.heartbeat_message)

    def ask(self, step: int) -> None:
        self.asked = self._request("Quorum", _message(manager_requests.quorum(member(self.number, step))))
        self.head, self.size = b"", 0

    def _request(self, method: str, message: bytes) -> int:
        self.stream += 2
        block = self.headers.later[method] if self.stream > 1 else self.headers.first
        headers = _frame(_HEADERS, _END_HEADERS, self.stream, block)
        self.connection.send(headers + _frame(_DATA, _END_STREAM, self.stream, message))
        return self.stream

    def receive(self, buffer: bytearray) -> None:
        """Read what has come; 0 bytes: the server has closed the connection, which ends the measurement."""
        try:
            count = self.connection.recv_into(buffer)
        except BlockingIOError:
            return
        if not count:
            raise ConnectionResetError("the Lighthouse has closed a connection")
        self.received += count
        if self.received >= _REFILL:
            self.connection.send(_frame(_WINDOW_UPDATE, 0, 0, self.received.to_bytes(4, "big")))
            self.received = 0
        data = self.pending + bytes(memoryview(buffer)[:count])
        self.pending = data[self._frames(data) :]

    def _frames(self, data: bytes) -> int:
        """Handle all frames; return how many bytes they had."""
        at, end = min(self.skip, len(data)), len(data)
        self.skip -= at
        if not self.skip and self.skipped_ends is not None:
            self._ended(self.skipped_ends)
        while not self.skip and end - at >= 9:
            length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            if kind == _DATA and stream == self.asked:
                if len(self.head) < 32 and at + 9 + length > end:
                    break  # the first frame of an answer is wanted whole, to read the quorum's id
                if len(self.head) < 32:
                    self.head += data[at + 9 : at + 9 + 32]
                self.size += length
            elif kind != _DATA and at + 9 + length > end:
                break
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                self.connection.send(_frame(kind, _ACK, 0, data[at + 9 : at + 17] if kind == _PING else b""))
            elif kind == _GOAWAY:
                raise ConnectionResetError("the Lighthouse ends a connection")
            at += 9
            taken = min(length, end - at)
            at += taken
            self.skip = length - taken
            if flags & _END_STREAM and kind in (_DATA, _HEADERS):
                if self.skip:
                    self.skipped_ends = stream
                else:
                    self._ended(stream)
        return at

    def _ended(self, stream: int) -> None:
        self.skipped_ends = None
        if stream == self.asked:
            self.asked = 0
            self.answered(Answer(self.number, quorum_id(self.head), self.size, time.perf_counter()))


def quorum_id(head: bytes) -> int:
    """Return the id of a quorum from the first bytes of the answer's message; 0: it is an error, not a quorum."""
    at, value = 5 + 1, 0  # the length of a gRPC message, the tag of LighthouseQuorumResponse.quorum
    if len(head) < at + 4:
        return 0
    while head[at] & 0x80:  # its length
        at += 1
    at += 1
    if head[at] != 0x08:  # Quorum.quorum_id
        return 0
    for shift in range(0, 64, 7):
        at += 1
        value |= (head[at] & 0x7F) << shift
        if not head[at] & 0x80:
            break
    return value


def member(number: int, step: int = 0) -> Member:
    """Return the request of a manager: names and addresses as long as real ones."""
    name = f"group_{number}:8c2e7a4e-6b7c-4f1e-9a56-{number:012d}"
    return Member(name, f"http://node{number:05d}:31234", f"node{number:05d}:29400", step=step)


@dataclass
class Step:
    """One quorum of all: the seconds from the last request until each manager had its answer."""

    waits_s: list[float] = field(default_factory=list)
    quorums: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)


class Managers:
    """All imitated managers."""

    def __init__(self, url: str, numbers: Sequence[int], interval_s: float, key: bytes = b"") -> None:
        """Connect. `key`: the run's key, if a guard is before the Lighthouse."""
        self.selector = selectors.DefaultSelector()
        self.interval_s = interval_s
        self.buffer = bytearray(_BUFFER)
        self.answers: list[Answer] = []
        split = urlsplit(url)
        headers = _Headers(split.netloc)
        self.all: list[_Manager] = []
        for number in numbers:
            connection = socket.create_connection((split.hostname, split.port or 0), 30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if key:
                said = connection.recv(handshake.CHALLENGE, socket.MSG_WAITALL)
                connection.sendall(handshake.answer(key, said, split.netloc + split.path)[0])
                connection.recv(handshake.PROOF, socket.MSG_WAITALL)
            one = _Manager(number, connection, headers, self.answers.append)
            self.selector.register(connection, selectors.EVENT_READ, one)
            self.all.append(one)
        self.begun, self.beaten = time.perf_counter(), 0  # heartbeats since then

    def beat_every(self, interval_s: float) -> None:
        """Set the interval of each manager's heartbeats."""
        self.interval_s, self.begun, self.beaten = interval_s, time.perf_counter(), 0

    def rest(self, until: float) -> None:
        """Send heartbeats, evenly spread over the interval, until a time of time.perf_counter()."""
        while (now := time.perf_counter()) < until:
            self._turn(min(0.002, until - now))

    def step(self, number: int, patience_s: float = 60.0) -> Step:
        """Ask for a quorum with all managers at once, and wait for all answers. Heartbeats go on."""
        self.answers.clear()
        for one in self.all:
            one.ask(number)
        asked = time.perf_counter()
        while len(self.answers) < len(self.all):
            self._turn(0.001)
            if time.perf_counter() > asked + patience_s:
                raise TimeoutError(f"{len(self.answers)} of {len(self.all)} managers have an answer")
        found = Step()
        for answer in self.answers:
            found.waits_s.append(answer.at - asked)
            found.quorums.add(answer.quorum)
            found.sizes.add(answer.size)
        return found

    def _turn(self, pause_s: float) -> None:
        due = int((time.perf_counter() - self.begun) / self.interval_s * len(self.all))
        for _ in range(max(0, min(due - self.beaten, len(self.all)))):
            self.all[self.beaten % len(self.all)].heartbeat()
            self.beaten += 1
        for key, _ in self.selector.select(max(0.0, pause_s)):
            key.data.receive(self.buffer)

    def close(self) -> None:
        """Close all connections."""
        for one in self.all:
            with contextlib.suppress(OSError):
                one.connection.close()
        self.selector.close()
