"""A gRPC server for short unary calls over HTTP/2 without TLS, as torchft's clients make them.

It serves one process and one event loop, and costs a fifth of the CPU time of grpc.aio for each call (a thousand
managers send heartbeats; benchmarks/scale_lighthouse.py). It has what torchft's client (tonic) needs: unary methods,
flow control, deadlines, cancelled calls, pings. It has no compression, no streaming, no TLS and no priorities.

A client is bounded in what it can make the server keep: one frame, one block of headers, MOST_STREAMS requests of
LARGEST_REQUEST bytes; a client that does not read its answers is not read from. A violation of the protocol closes
the connection.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import re
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_REQUEST = 65536  # bytes of a request's message
MOST_STREAMS = 100  # requests of a connection at a time
MOST_HEADERS = 8192  # bytes of a request's headers
READ = 16384  # bytes read of a connection, before others get their turn
KEEPALIVE_S = 30.0  # a connection that was silent for so long is pinged, and closed after as long again
HEADERS_KEPT = 64  # blocks of headers whose meaning is remembered
_WINDOW = 65535  # bytes that a side may send at first, for a stream and for a connection
_OUR_WINDOW = 1 << 17  # for a stream: a whole request, so that it needs no updates
_LARGEST_WINDOW = 2**31 - 1
_FRAME = 16384  # largest payload of a frame
_HEAD = 9  # bytes before it
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")


class _Kind(enum.IntEnum):
    """Kinds of frames."""

    DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


_DATA, _HEADERS, _WINDOW_UPDATE = int(_Kind.DATA), int(_Kind.HEADERS), int(_Kind.WINDOW_UPDATE)  # enums are slow
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_PROTOCOL_ERROR, _REFUSED_STREAM = 1, 7


class Status(enum.IntEnum):
    """gRPC's status codes that this server uses."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class NotHTTP2(ValueError):
    """The bytes are not those of an HTTP/2 client."""


# Returns the answer's message, at once or later; a later one is cancelled when the client hangs up or its deadline has
# passed. Both may raise CallError.
Handler = Callable[[bytes], "bytes | Coroutine[Any, Any, bytes]"]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def fragment(payload: bytes, flags: int) -> bytes:
    """Return the payload of a frame without its padding and priority.

    Raises:
        NotHTTP2: there is more padding than payload.
    """
    pad, begin = 0, 0
    if flags & _PADDED:
        pad, begin = (payload[0] if payload else 0), 1
    if flags & _PRIORITY:
        begin += 5
    if begin + pad > len(payload):
        raise NotHTTP2("more padding than frame")
    return payload[begin : len(payload) - pad]


@functools.lru_cache(100)
def _block(*fields: tuple[str, str]) -> bytes:
    """Encode headers without any use of the client's table, so that all connections have the same bytes."""
    return Encoder().encode([NeverIndexedHeaderTuple(*one) for one in fields], huffman=False)


_CONTENT = ((":status", "200"), ("content-type", "application/grpc"))
_BEGIN = _block(*_CONTENT)
_OK = _block(("grpc-status", "0"))
_HELLO = frame(
    _Kind.SETTINGS, 0, 0, b"\0\3" + MOST_STREAMS.to_bytes(4, "big") + b"\0\4" + _OUR_WINDOW.to_bytes(4, "big")
) + frame(_Kind.WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _WINDOW).to_bytes(4, "big"))


@dataclass(frozen=True)
class _Request:
    """What the headers of a request say."""

    path: bytes
    timeout_s: float | None


@dataclass(eq=False)
class _Stream:
    """One call."""

    number: int
    request: _Request
    window: int  # bytes that the client takes of its answer
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False  # the request is whole
    task: asyncio.Task[bytes] | None = None
    deadline: asyncio.TimerHandle | None = None
    left: memoryview | None = None  # of the answer's body, as long as windows are too small


class GrpcServer:
    """Serves methods on the connections that it is given.

    Args:
        methods: the handlers by path, /SERVICE/METHOD.
    """

    def __init__(self, methods: Mapping[str, Handler]) -> None:
        self.methods = {path.encode(): handler for path, handler in methods.items()}
        self.connections: set[Connection] = set()
        self._adopting: set[asyncio.Task[None]] = set()

    def adopt(self, connected: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere; its socket is now the server's."""
        task = asyncio.create_task(self._serve(connected))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _serve(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self), connected)
        except OSError:  # the client has hung up
            connected.close()

    async def check(self) -> NoReturn:
        """Close connections whose client has vanished without closing them."""
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            for connection in list(self.connections):
                connection.check()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: GrpcServer) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.streams: dict[int, _Stream] = {}
        self.last = 0  # the highest stream of the client
        self.window = _WINDOW  # bytes that the client takes
        self.stream_window = _WINDOW  # the same, of a new stream
        self.sending: dict[_Stream, None] = {}  # answers that wait for a window, the oldest first
        self.decoder = Decoder(max_header_list_size=MOST_HEADERS)
        self.known: dict[bytes, _Request] = {}  # what blocks mean with the present table
        self.block: tuple[int, int, bytes] | None = None  # stream, flags and headers so far, until CONTINUATION ends
        self.pending = b""  # received, less than a frame
        self.greeted = False
        self.taken = 0  # bytes of requests that the client does not know to be read
        self.heard = True  # since the last check
        self.pinged = False  # at the last check
        self.clogged = False  # the client does not read its answers
        self._out: list[bytes | memoryview] = []

    # --- the transport ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.max_size = READ  # type: ignore[attr-defined]  # asyncio's is 256 KiB
        self.server.connections.add(self)
        transport.write(_HELLO)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 asyncio calls it so
        self.server.connections.discard(self)
        for stream in list(self.streams.values()):
            self._forget(stream)

    def pause_writing(self) -> None:
        self.clogged = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.clogged = False
        if self.transport is not None:
            self.transport.resume_reading()
        self._send_waiting()
        self._flush()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def check(self) -> None:
        """Ping a client that was silent since the last check, or close the connection if it was pinged then."""
        if not self.heard and not self.pinged:
            self.pinged = True
            self._out.append(frame(_Kind.PING, 0, 0, bytes(8)))
            self._flush()
        elif not self.heard:
            self.abort()
        self.heard = False

    def data_received(self, data: bytes) -> None:
        self.heard, self.pinged = True, False
        try:
            data = self.pending + data if self.pending else data
            self.pending = data[self._read(data) :]
        except (NotHTTP2, HPACKError):
            last, error = self.last.to_bytes(4, "big"), _PROTOCOL_ERROR.to_bytes(4, "big")
            self._out.append(frame(_Kind.GOAWAY, 0, 0, last + error))
            self._flush()
            if self.transport is not None:
                self.transport.close()
            return
        self._flush()

    def _flush(self) -> None:
        if self._out and self.transport is not None:
            out, self._out = self._out, []
            if not self.transport.is_closing():
                self.transport.write(b"".join(out))

    # --- frames -----------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> int:
        """Handle all whole frames; return how many bytes they had.

        Raises:
            NotHTTP2, HPACKError: the client violates the protocol.
        """
        at, end = 0, len(data)
        if not self.greeted:
            if not data.startswith(PREFACE[:end]):
                raise NotHTTP2("it does not begin as HTTP/2 does")
            if end < len(PREFACE):
                return 0
            self.greeted, at = True, len(PREFACE)
        while end - at >= _HEAD:
            length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            if length > _FRAME:
                raise NotHTTP2("a frame is too large")
            if end - at < _HEAD + length:
                break
            number = int.from_bytes(data[at + 5 : at + _HEAD], "big") & 0x7FFFFFFF
            at += _HEAD + length
            self._frame(kind, flags, number, data[at - length : at])
        return at

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self.block is not None and (kind, number) != (_Kind.CONTINUATION, self.block[0]):
            raise NotHTTP2("its headers are not whole")
        if kind == _DATA:
            self._data(number, flags, payload)
        elif kind == _HEADERS:
            self._headers(number, flags, fragment(payload, flags))
        elif kind == _WINDOW_UPDATE:
            self._widen(number, payload)
        elif kind == _Kind.CONTINUATION:
            if self.block is None:
                raise NotHTTP2("it continues no headers")
            self._headers(number, self.block[1] | (flags & _END_HEADERS), self.block[2] + payload)
        elif kind == _Kind.RST_STREAM:
            if (stream := self.streams.get(number)) is not None:
                self._forget(stream)
        elif kind == _Kind.SETTINGS:
            if not flags & _ACK:
                self._settings(payload)
        elif kind == _Kind.PING:
            if len(payload) != 8:
                raise NotHTTP2("a ping has eight bytes")
            if not flags & _ACK:
                self._out.append(frame(_Kind.PING, _ACK, 0, payload))
        elif kind == _Kind.PUSH_PROMISE:
            raise NotHTTP2("a client pushes nothing")

    def _settings(self, payload: bytes) -> None:
        if len(payload) % 6:
            raise NotHTTP2("settings have six bytes each")
        for at in range(0, len(payload), 6):
            key, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            if key == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                if value > _LARGEST_WINDOW:
                    raise NotHTTP2("a window is too large")
                more, self.stream_window = value - self.stream_window, value
                for stream in self.streams.values():
                    stream.window += more
                if more > 0:
                    self._send_waiting()
        self._out.append(frame(_Kind.SETTINGS, _ACK, 0, b""))

    def _widen(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise NotHTTP2("a window's update has four bytes")
        more = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if number:
            if (stream := self.streams.get(number)) is None:
                return
            stream.window += more
            wide = stream.window
        else:
            self.window += more
            wide = self.window
        if not more or wide > _LARGEST_WINDOW:
            raise NotHTTP2("a window is too large")
        self._send_waiting()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _headers(self, number: int, flags: int, block: bytes) -> None:
        if len(block) > MOST_HEADERS:
            raise NotHTTP2("its headers are too long")
        if not flags & _END_HEADERS:
            self.block = (number, flags, block)
            return
        self.block = None
        request = self._meaning(block)
        if (stream := self.streams.get(number)) is not None:  # trailers
            if stream.ended or not flags & _END_STREAM:
                raise NotHTTP2("a request has headers once")
            self._begin(stream)
            return
        if number <= self.last or not number % 2:
            raise NotHTTP2("a stream is used twice")
        self.last = number
        if len(self.streams) >= MOST_STREAMS:
            self._out.append(frame(_Kind.RST_STREAM, 0, number, _REFUSED_STREAM.to_bytes(4, "big")))
            return
        self.streams[number] = stream = _Stream(number, request, self.stream_window)
        if flags & _END_STREAM:
            self._begin(stream)

    def _meaning(self, block: bytes) -> _Request:
        """Decode headers. A block means the same again as long as the table of the connection is the same."""
        if (known := self.known.get(block)) is not None:
            return known
        table = self.decoder.header_table
        size, entries, first = table.maxsize, len(table.dynamic_entries), next(iter(table.dynamic_entries), None)
        headers = dict(self.decoder.decode(block, raw=True))
        same = table.maxsize == size and len(table.dynamic_entries) == entries
        same = same and next(iter(table.dynamic_entries), None) is first
        found = _TIMEOUT.fullmatch(headers.get(b"grpc-timeout", b""))
        timeout_s = int(found[1]) * _UNITS[found[2].decode()] if found else None
        request = _Request(bytes(headers.get(b":path", b"")), timeout_s)
        if not same or len(self.known) >= HEADERS_KEPT:
            self.known.clear()
        if same:
            self.known[block] = request
        return request

    def _data(self, number: int, flags: int, payload: bytes) -> None:
        if number > self.last or not number:
            raise NotHTTP2("data of no request")
        self.taken += len(payload)
        if self.taken >= 1 << 20:
            self._out.append(frame(_Kind.WINDOW_UPDATE, 0, 0, self.taken.to_bytes(4, "big")))
            self.taken = 0
        stream = self.streams.get(number)
        if stream is None:  # it has ended already
            return
        if stream.ended:
            raise NotHTTP2("data after a request's end")
        if flags & _PADDED:
            payload = fragment(payload, flags & _PADDED)
        stream.body += payload
        if len(stream.body) > 5 + LARGEST_REQUEST:
            self._refuse(stream, CallError(Status.INVALID_ARGUMENT, f"a request has at most {LARGEST_REQUEST} bytes"))
        elif flags & _END_STREAM:
            self._begin(stream)

    def _begin(self, stream: _Stream) -> None:
        """Run the handler of a whole request."""
        stream.ended = True
        try:
            handler = self.server.methods.get(stream.request.path)
            if handler is None:
                raise CallError(Status.UNIMPLEMENTED, "there is no such method")
            body = bytes(stream.body)
            if len(body) < 5 or body[0] or int.from_bytes(body[1:5], "big") != len(body) - 5:
                raise CallError(Status.INVALID_ARGUMENT, "a request is one message, not compressed")
            answer = handler(body[5:])
        except CallError as error:
            self._refuse(stream, error)
            return
        if isinstance(answer, bytes):
            self._answer(stream, answer)
            return
        loop = asyncio.get_running_loop()
        stream.task = loop.create_task(answer)
        stream.task.add_done_callback(functools.partial(self._done, stream))
        if stream.request.timeout_s is not None:
            late = CallError(Status.DEADLINE_EXCEEDED, "the deadline has passed")
            stream.deadline = loop.call_later(stream.request.timeout_s, self._late, stream, late)

    def _done(self, stream: _Stream, task: asyncio.Task[bytes]) -> None:
        """Answer a call whose handler has ended, unless it was cancelled."""
        if task.cancelled():
            return
        stream.task, error = None, task.exception()
        if error is None:
            self._answer(stream, task.result())
        elif isinstance(error, CallError):
            self._refuse(stream, error)
        else:
            self._refuse(stream, CallError(Status.INTERNAL, "the Lighthouse has failed, see its log"))
        self._flush()
        if error is not None and not isinstance(error, CallError):
            raise error  # the event loop logs it

    def _late(self, stream: _Stream, error: CallError) -> None:
        stream.deadline = None
        self._refuse(stream, error)
        self._flush()

    def _forget(self, stream: _Stream) -> None:
        """End a call on this side."""
        self.streams.pop(stream.number, None)
        self.sending.pop(stream, None)
        if stream.deadline is not None:
            stream.deadline.cancel()
        if stream.task is not None:
            stream.task.cancel()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _refuse(self, stream: _Stream, error: CallError) -> None:
        if stream.number not in self.streams:
            return
        words = quote(error.reason[:1000], safe=" !#$&'()*+,/:;=?@[]<>{}|")
        block = _block(*_CONTENT, ("grpc-status", str(int(error.status))), ("grpc-message", words))
        self._out.append(frame(_HEADERS, _END_STREAM | _END_HEADERS, stream.number, block))
        if not stream.ended:
            self._out.append(frame(_Kind.RST_STREAM, 0, stream.number, bytes(4)))  # the rest is not wanted
        self._forget(stream)

    def _answer(self, stream: _Stream, message: bytes) -> None:
        if stream.number not in self.streams:
            return
        if stream.deadline is not None:  # the status is on its way, if only the client takes it
            stream.deadline.cancel()
        number = stream.number.to_bytes(4, "big")
        prefix = b"\0" + len(message).to_bytes(4, "big")
        self._out.append(len(_BEGIN).to_bytes(3, "big") + b"\1\4" + number + _BEGIN)
        if self.sending or min(stream.window, self.window) < len(prefix):
            stream.left = memoryview(prefix + message)
        else:  # a frame of its own: the message, which many clients get, is not copied for each of them
            self._out.append(b"\0\0\5\0\0" + number + prefix)
            stream.window -= len(prefix)
            self.window -= len(prefix)
            stream.left = memoryview(message)
        self.sending[stream] = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send as much of the waiting answers as the client takes."""
        for stream in list(self.sending):
            assert stream.left is not None
            while (size := min(len(stream.left), _FRAME, stream.window, self.window)) > 0 and not self.clogged:
                self._out.append(size.to_bytes(3, "big") + b"\0\0" + stream.number.to_bytes(4, "big"))
                self._out.append(stream.left[:size])
                stream.left = stream.left[size:]
                stream.window -= size
                self.window -= size
            if not stream.left:
                del self.sending[stream]
                self._end(stream)

    def _end(self, stream: _Stream) -> None:
        self._out.append(len(_OK).to_bytes(3, "big") + b"\1\5" + stream.number.to_bytes(4, "big") + _OK)
        self._forget(stream)
