"""A gRPC server for short unary calls over HTTP/2 without TLS, as torchft's clients make them.

It serves one process and one event loop, and costs a fifth of the CPU time of grpc.aio for each call (a thousand
managers send heartbeats; benchmarks/scale_lighthouse.py). It has what torchft's client (tonic) needs: unary methods,
flow control, cancelled calls, answers to pings. It has no compression, streaming, TLS, padding or priorities. A client
whose deadline has passed cancels its call, so the server has no deadlines.

A client is bounded in what it can make the server keep: one frame, MOST_STREAMS requests of LARGEST_REQUEST bytes; a
client that does not read its answers is not read from. A violation of the protocol, what the server does not have,
headers that do not fit into one frame, and more or larger requests close the connection.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from ftslurm.guard.sockets import end_if_silent

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_REQUEST = 65536  # bytes of a request's message
MOST_STREAMS = 100  # requests of a connection at a time
MOST_HEADERS = 8192  # bytes of a request's headers, decoded
READ = 16384  # bytes read of a connection, before others get their turn
HEADERS_KEPT = 64  # blocks of headers whose meaning is remembered
GONE_S = 30  # a client that answers nothing is gone
_WINDOW = 65535  # bytes that a side may send at first, for a stream and for a connection
_OUR_WINDOW = 1 << 17  # for a stream: a whole request, so that it needs no updates
_LARGEST_WINDOW = 2**31 - 1
_FRAME = 16384  # largest payload of a frame
_HEAD = 9  # bytes before it
# Kinds of frames.
_DATA, _HEADERS, _, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_PROTOCOL_ERROR = 1


class Status(enum.IntEnum):
    """gRPC's status codes that this server uses."""

    INVALID_ARGUMENT = 3
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


# Returns the answer's message, at once or later; a later one is cancelled when the client cancels the call or hangs up.
# Both may raise CallError.
Handler = Callable[[bytes], "bytes | Coroutine[Any, Any, bytes]"]


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@functools.lru_cache(100)
def _block(*fields: tuple[str, str]) -> bytes:
    """Encode headers without any use of the client's table, so that all connections have the same bytes."""
    return Encoder().encode([NeverIndexedHeaderTuple(*one) for one in fields], huffman=False)


_CONTENT = ((":status", "200"), ("content-type", "application/grpc"))
_BEGIN = _block(*_CONTENT)
_OK = _block(("grpc-status", "0"))
_HELLO = frame(
    _SETTINGS, 0, 0, b"\0\3" + MOST_STREAMS.to_bytes(4, "big") + b"\0\4" + _OUR_WINDOW.to_bytes(4, "big")
) + frame(_WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _WINDOW).to_bytes(4, "big"))


@dataclass(eq=False)
class _Stream:
    """One call."""

    number: int
    path: bytes  # of the method
    window: int  # bytes that the client takes of its answer
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False  # the request is whole
    task: asyncio.Task[bytes] | None = None
    left: memoryview | None = None  # of the answer's body, as long as windows are too small


class GrpcServer:
    """Serves methods on the connections that it is given.

    Args:
        methods: the handlers by path, /SERVICE/METHOD.
    """

    def __init__(self, methods: Mapping[str, Handler]) -> None:
        self.methods = {path.encode(): handler for path, handler in methods.items()}
        self._adopting: set[asyncio.Task[None]] = set()

    def adopt(self, connected: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere; its socket is now the server's."""
        task = asyncio.create_task(self._serve(connected))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _serve(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        try:
            end_if_silent(connected, GONE_S)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self), connected)
        except OSError:  # the client has hung up
            connected.close()


class Connection(asyncio.Protocol):
    """One client's connection."""

    transport: asyncio.Transport

    def __init__(self, server: GrpcServer) -> None:
        self.server = server
        self.streams: dict[int, _Stream] = {}
        self.last = 0  # the highest stream of the client
        self.window = _WINDOW  # bytes that the client takes
        self.stream_window = _WINDOW  # the same, of a new stream
        self.sending: dict[_Stream, None] = {}  # answers that wait for a window, the oldest first
        self.decoder = Decoder(max_header_list_size=MOST_HEADERS)
        self.known: dict[bytes, bytes] = {}  # the paths in blocks of headers, with the present table
        self.pending = b""  # received, less than a frame
        self.greeted = False
        self._out: list[bytes] = []

    # --- the transport ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.max_size = READ  # type: ignore[attr-defined]  # asyncio's is 256 KiB
        transport.write(_HELLO)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 asyncio calls it so
        for stream in list(self.streams.values()):
            self._forget(stream)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            data = self.pending + data if self.pending else data
            self.pending = data[self._read(data) :]
        except (NotHTTP2, HPACKError):
            last, error = self.last.to_bytes(4, "big"), _PROTOCOL_ERROR.to_bytes(4, "big")
            self._out.append(frame(_GOAWAY, 0, 0, last + error))
            self._flush()
            self.transport.close()
            return
        self._flush()

    def _flush(self) -> None:
        if self._out:
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
        if kind in (_DATA, _HEADERS) and flags & (_PADDED | _PRIORITY):
            raise NotHTTP2("padding and priorities, which tonic never sends")
        if kind == _DATA:
            self._data(number, flags, payload)
        elif kind == _HEADERS:
            self._headers(number, flags, payload)
        elif kind == _WINDOW_UPDATE:
            self._widen(number, payload)
        elif kind == _RST_STREAM:
            if (stream := self.streams.get(number)) is not None:
                self._forget(stream)
        elif kind == _SETTINGS:
            if not flags & _ACK:
                self._settings(payload)
        elif kind == _PING:
            if len(payload) != 8:
                raise NotHTTP2("a ping has eight bytes")
            if not flags & _ACK:
                self._out.append(frame(_PING, _ACK, 0, payload))
        elif kind in (_PUSH_PROMISE, _CONTINUATION):
            raise NotHTTP2("a client pushes nothing, and its headers are in one frame")

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
        self._out.append(frame(_SETTINGS, _ACK, 0, b""))

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
        if not flags & _END_HEADERS:
            raise NotHTTP2("its headers are not in one frame")
        path = self._path(block)
        if number <= self.last or not number % 2:
            raise NotHTTP2("a stream is used twice, or has trailers")
        if len(self.streams) >= MOST_STREAMS:
            raise NotHTTP2("more requests at a time than it may have")
        self.last = number
        self.streams[number] = stream = _Stream(number, path, self.stream_window)
        if flags & _END_STREAM:
            self._begin(stream)

    def _path(self, block: bytes) -> bytes:
        """Return the path in a block of headers.

        A block of nothing but places in the connection's table means the same until another block changes the table.
        """
        if (known := self.known.get(block)) is not None:
            return known
        path = bytes(dict(self.decoder.decode(block, raw=True)).get(b":path", b""))
        if min(block, default=0) < 0x80 or len(self.known) >= HEADERS_KEPT:  # RFC 7541, 6.1
            self.known.clear()
        else:
            self.known[block] = path
        return path

    def _data(self, number: int, flags: int, payload: bytes) -> None:
        if number > self.last or not number:
            raise NotHTTP2("data of no request")
        if payload:
            self._out.append(frame(_WINDOW_UPDATE, 0, 0, len(payload).to_bytes(4, "big")))
        stream = self.streams.get(number)
        if stream is None:  # it has ended already
            return
        if stream.ended:
            raise NotHTTP2("data after a request's end")
        stream.body += payload
        if len(stream.body) > 5 + LARGEST_REQUEST:
            raise NotHTTP2("a request is too large")
        if flags & _END_STREAM:
            self._begin(stream)

    def _begin(self, stream: _Stream) -> None:
        """Run the handler of a whole request."""
        stream.ended = True
        try:
            handler = self.server.methods.get(stream.path)
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
        stream.task = asyncio.get_running_loop().create_task(answer)
        stream.task.add_done_callback(functools.partial(self._done, stream))

    def _done(self, stream: _Stream, task: asyncio.Task[bytes]) -> None:
        """Answer a call whose handler has ended, unless it was cancelled."""
        if task.cancelled():
            return
        stream.task = None
        try:
            self._answer(stream, task.result())
        except CallError as error:
            self._refuse(stream, error)
        except BaseException:  # the event loop logs it
            self._refuse(stream, CallError(Status.INTERNAL, "the Lighthouse has failed, see its log"))
            raise
        finally:
            self._flush()

    def _forget(self, stream: _Stream) -> None:
        """End a call on this side."""
        self.streams.pop(stream.number, None)
        self.sending.pop(stream, None)
        if stream.task is not None:
            stream.task.cancel()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _refuse(self, stream: _Stream, error: CallError) -> None:
        if stream.number not in self.streams:
            return
        words = quote(error.reason[:1000], safe=" !#$&'()*+,/:;=?@[]<>{}|")
        block = _block(*_CONTENT, ("grpc-status", str(int(error.status))), ("grpc-message", words))
        self._out.append(frame(_HEADERS, _END_STREAM | _END_HEADERS, stream.number, block))
        self._forget(stream)

    def _answer(self, stream: _Stream, message: bytes) -> None:
        if stream.number not in self.streams:
            return
        self._out.append(frame(_HEADERS, _END_HEADERS, stream.number, _BEGIN))
        stream.left = memoryview(b"\0" + len(message).to_bytes(4, "big") + message)
        self.sending[stream] = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send as much of the waiting answers as the client takes."""
        for stream in list(self.sending):
            assert stream.left is not None
            while (size := min(len(stream.left), _FRAME, stream.window, self.window)) > 0:
                self._out.append(frame(_DATA, 0, stream.number, stream.left[:size]))
                stream.left = stream.left[size:]
                stream.window -= size
                self.window -= size
            if not stream.left:
                del self.sending[stream]
                self._out.append(frame(_HEADERS, _END_STREAM | _END_HEADERS, stream.number, _OK))
                self._forget(stream)
