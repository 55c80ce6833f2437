"""The Lighthouse's gRPC server, frame by frame. torchft's and grpc's own clients use it in tests/local."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from fuzz import tried
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.lighthouse.grpc_server import (
    GONE_S,
    HEADERS_KEPT,
    LARGEST_REQUEST,
    MOST_STREAMS,
    PREFACE,
    CallError,
    Connection,
    GrpcServer,
    Status,
    frame,
)

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32
HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")
WIDE = frame(SETTINGS, 0, 0, b"\0\4" + (2**31 - 1).to_bytes(4, "big")) + frame(WINDOW_UPDATE, 0, 0, b"\x7f\0\0\0")


class Wire(asyncio.Transport):
    """Keeps what the server has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = self.reads = False

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Client:
    """One connection to a server with the methods /echo, /later, /bad and /never."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.wire, self.encoder, self.decoder = Wire(), Encoder(), Decoder()
        self.gate = asyncio.Event()
        self.message = b""
        methods = {"/echo": lambda data: data, "/later": self.later, "/bad": self.bad}
        self.connection = Connection(GrpcServer(methods))
        self.connection.connection_made(self.wire)

    async def later(self, _data: bytes) -> bytes:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.message

    def bad(self, _data: bytes) -> bytes:
        raise CallError(Status.FAILED_PRECONDITION, "no: 100 %\nnever")

    def send(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    def headers(self, stream: int, path: str, *more: tuple[str, str]) -> bytes:
        block = self.encoder.encode([(":method", "POST"), (":path", path), ("te", "trailers"), *more])
        return frame(HEADERS, END_HEADERS, stream, block)

    def call(self, stream: int, path: str, message: bytes = b"", *more: tuple[str, str]) -> bytes:
        body = b"\0" + len(message).to_bytes(4, "big") + message
        return self.headers(stream, path, *more) + frame(DATA, END_STREAM, stream, body)

    def received(self) -> list[tuple[int, int, bytes]]:
        """Return all frames since the last call: kind, stream and payload, headers decoded."""
        found, data = [], bytes(self.wire.sent)
        self.wire.sent.clear()
        while data:
            length, kind, stream = int.from_bytes(data[:3], "big"), data[3], int.from_bytes(data[5:9], "big")
            payload, data = data[9 : 9 + length], data[9 + length :]
            if kind == HEADERS:
                payload = repr(dict(self.decoder.decode(payload))).encode()
            found.append((kind, stream, payload))
        return found

    def answer(self, stream: int) -> tuple[bytes, str]:
        """Return the message and the last headers of a stream."""
        frames = [(kind, payload) for kind, number, payload in self.received() if number == stream]
        body = b"".join(payload for kind, payload in frames if kind == DATA)
        return body[5:], ([""] + [payload.decode() for kind, payload in frames if kind == HEADERS])[-1]


def in_loop(test: Callable[[Client], Any]) -> None:
    async def run() -> None:
        client = Client()
        client.send(HELLO, WIDE)
        await test(client)

    asyncio.run(run())


def test_headers_that_come_again_are_read_with_the_table_of_the_moment() -> None:
    async def run(client: Client) -> None:
        for stream in range(1, 20, 2):
            path = ("/echo", "/bad", "/none")[stream % 3]
            client.send(client.call(stream, path, b"x", *([("a", str(stream))] if stream % 4 == 1 else [])))
            message, status = client.answer(stream)
            expected = {"/echo": "'grpc-status': '0'", "/bad": "'grpc-status': '9'", "/none": "'grpc-status': '12'"}
            assert expected[path] in status
            assert message == (b"x" if path == "/echo" else b"")

    in_loop(run)


def test_it_makes_no_difference_how_the_bytes_are_cut() -> None:
    async def run(client: Client) -> None:
        block = client.encoder.encode([(":path", "/echo")])
        for byte in frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, b"\0\0\0\0\2hi"):
            client.send(bytes([byte]))
        message, status = client.answer(1)
        assert message == b"hi"
        assert "'grpc-status': '0'" in status

    in_loop(run)


def test_an_answer_never_exceeds_the_windows_of_the_client() -> None:
    async def run(client: Client) -> None:
        client.message = bytes(range(256)) * 600
        client.send(frame(SETTINGS, 0, 0, b"\0\4" + (1000).to_bytes(4, "big")), client.call(1, "/later"))
        client.gate.set()
        await asyncio.sleep(0.01)
        got, allowed = b"", 1000
        while True:
            frames = client.received()
            got += b"".join(payload for kind, stream, payload in frames if (kind, stream) == (DATA, 1))
            assert len(got) <= allowed
            if any(b"grpc-status" in payload for _, _, payload in frames):
                break
            allowed += 50_000
            client.send(frame(WINDOW_UPDATE, 0, 1, (50_000).to_bytes(4, "big")))
        assert got == b"\0" + len(client.message).to_bytes(4, "big") + client.message

    in_loop(run)


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async def run(client: Client) -> None:
        client.connection.pause_writing()
        assert not client.wire.reads
        client.connection.resume_writing()
        assert client.wire.reads

    in_loop(run)


@pytest.mark.parametrize("how", ["reset", "hang-up"])
def test_a_call_that_nobody_waits_for_is_cancelled(how: str) -> None:
    async def run(client: Client) -> None:
        client.send(client.call(1, "/later"))
        await asyncio.sleep(0)
        if how == "reset":
            client.send(frame(RST_STREAM, 0, 1, bytes(4)))
        else:
            client.connection.connection_lost(None)
        await asyncio.sleep(0.1)
        assert client.cancelled == 1
        assert not client.connection.streams
        assert client.answer(1) == (b"", "")

    in_loop(run)


def test_requests_are_bounded_in_number_and_size() -> None:
    async def run(client: Client) -> None:
        for number in range(MOST_STREAMS):
            client.send(client.call(2 * number + 1, "/later"))
        assert not client.wire.closed
        client.send(client.call(2 * MOST_STREAMS + 1, "/later"))
        assert client.wire.closed
        assert len(client.connection.streams) == MOST_STREAMS
        client.connection.connection_lost(None)

    in_loop(run)

    async def too_large(client: Client) -> None:
        client.send(client.headers(1, "/echo"))
        for _ in range(LARGEST_REQUEST // 16384 + 1):
            assert not client.wire.closed
            client.send(frame(DATA, 0, 1, bytes(16384)))
        assert client.wire.closed

    in_loop(too_large)


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\x40\1" + bytes(6),  # a frame of more than 16 KB
        frame(DATA, 0, 1, b"x"),
        frame(CONTINUATION, 0, 1, b""),
        frame(HEADERS, 0, 1, b""),
        frame(HEADERS, END_HEADERS, 1, b"\x82" * 300),  # more than MOST_HEADERS
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff"),
        frame(HEADERS, END_HEADERS, 2, b""),
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\0\x82"),
        frame(HEADERS, END_HEADERS | PRIORITY, 1, b"\0\0\0\0\x10\x82"),
        frame(PING, 0, 0, b"x"),
        frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
        frame(SETTINGS, 0, 0, b"x"),
    ],
)
def test_who_violates_the_protocol_is_disconnected(bad: bytes) -> None:
    async def run(client: Client) -> None:
        client.send(bad)
        assert client.wire.closed
        assert [kind for kind, _, _ in client.received()][-1] == GOAWAY

    in_loop(run)


def test_the_kernel_watches_for_a_client_that_vanishes() -> None:
    async def run(client: Client) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as far,
        ):
            near, _ = listener.accept()
            with near.dup() as copy:
                client.connection.server.adopt(near)
                far.sendall(HELLO)
                assert await asyncio.get_running_loop().run_in_executor(None, far.recv, 1)
                assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * GONE_S

    in_loop(run)


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
@tried(200)
def test_no_bytes_make_it_fail(more: bytes, where: int, value: int) -> None:
    async def run() -> None:
        client = Client()
        data = bytearray(HELLO + WIDE + client.call(1, "/echo", b"abc") + client.call(3, "/later") + more)
        data[where % len(data)] = value
        client.send(bytes(data))
        await asyncio.sleep(0)
        client.connection.connection_lost(None)

    asyncio.run(run())


NUMBERS = st.sampled_from([0, 1, 1, 3, 3, 5, 7, 9, 2, 2**31 - 1])
FLAGS = st.sampled_from([0, END_STREAM, END_HEADERS, END_STREAM | END_HEADERS, 8, 0x20, 0xFF])
BODIES = st.sampled_from([b"", b"\0\0\0\0\3abc", b"\0\0\0\0\3ab", b"\1\0\0\0\0", b"\0\xff\xff\xff\xff", bytes(16384)])
SIZES = st.sampled_from([0, 1, 5, 65535, 2**31 - 1, 2**31, 2**32 - 1]).map(lambda size: size.to_bytes(4, "big"))
OPTIONS = st.builds(lambda key, size: key.to_bytes(2, "big") + size, st.sampled_from([1, 3, 4, 4, 4, 5, 99]), SIZES)
BLOCKS = st.sampled_from(
    [Encoder().encode([(":method", "POST"), (":path", path)]) for path in ("/echo", "/later", "/bad", "/no")]
    + [Encoder().encode([(":path", "/later"), ("grpc-timeout", "1n")]), b"", b"\x3f\xe1\x1f", b"\xff\xff\xff\xff"]
)
FRAMES = st.one_of(
    st.builds(frame, st.just(HEADERS), FLAGS, NUMBERS, BLOCKS),
    st.builds(frame, st.just(CONTINUATION), FLAGS, NUMBERS, BLOCKS),
    st.builds(frame, st.just(DATA), FLAGS, NUMBERS, BODIES),
    st.builds(frame, st.just(SETTINGS), st.sampled_from([0, 0, 1]), NUMBERS, OPTIONS),
    st.builds(frame, st.just(WINDOW_UPDATE), st.just(0), NUMBERS, SIZES),
    st.builds(frame, st.integers(0, 12), FLAGS, NUMBERS, st.sampled_from([b"", bytes(4), bytes(5), bytes(8)])),
)


@given(st.lists(FRAMES, max_size=30), st.integers(1, 9000))
@tried(600)
def test_frames_in_any_order_neither_make_it_fail_nor_grow(frames: list[bytes], cut: int) -> None:
    """Whatever a client sends, what the server keeps is bounded, another client is served, and nothing is unhandled."""
    unhandled = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        client, other = Client(), Client()
        other.connection.server = client.connection.server
        data = HELLO + b"".join(frames)
        for at in range(0, len(data), cut):
            if not client.wire.closed:
                client.send(data[at : at + cut])
            await asyncio.sleep(0)
        ours = client.connection
        assert len(ours.streams) <= MOST_STREAMS
        assert len(ours.pending) < 16384 + 9
        assert all(len(stream.body) <= 5 + LARGEST_REQUEST + 16384 for stream in ours.streams.values())
        assert len(ours.known) <= HEADERS_KEPT
        other.send(HELLO + other.call(1, "/echo", b"abc"))
        assert other.answer(1)[0] == b"abc"
        ours.connection_lost(None)
        client.gate.set()
        await asyncio.sleep(0)
        assert not ours.streams

    asyncio.run(run())
    assert unhandled == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=12), st.integers(0, 60_000))
@tried(200)
def test_no_order_of_updates_makes_it_send_more_than_the_windows_allow(
    updates: list[tuple[bool, int]], size: int
) -> None:
    async def run() -> None:
        client = Client()
        client.message = bytes(size)
        client.gate.set()
        client.send(HELLO, frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)), client.call(1, "/later"))
        for _ in range(3):
            await asyncio.sleep(0)
        allowed = {0: 65535, 1: 0}
        sent = 0
        for of_stream, more in updates:
            if more and 1 in client.connection.streams:
                allowed[int(of_stream)] += more
                client.send(frame(WINDOW_UPDATE, 0, int(of_stream), more.to_bytes(4, "big")))
            sent += sum(len(payload) for kind, _, payload in client.received() if kind == DATA)
            assert sent <= min(*allowed.values(), 5 + size)
        assert sent == min(*allowed.values(), 5 + size)

    asyncio.run(run())


def test_a_ping_is_answered() -> None:
    async def run(client: Client) -> None:
        client.received()
        client.send(frame(PING, 0, 0, b"12345678"))
        assert client.received() == [(PING, 0, b"12345678")]

    in_loop(run)
