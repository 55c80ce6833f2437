"""Reads the credentials of a client from the first request of an HTTP/2 connection. Pure: bytes in, a value out.

torchft's client takes no credentials, but a URL may have a user part: of `http://TOKEN@host:port` it sends
`TOKEN@host:port` as the `:authority` of every request (torchft 0.2.0, tonic 0.12). The
server must not parse the bytes of clients without the token, so the first request is read here, before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpack import Decoder, Encoder, HPACKError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LONGEST = 4096  # bytes up to the end of the first request; torchft's has some 200
_HEAD = 9  # bytes before the payload of a frame: its length (3), kind, flags, stream (4)
_DATA, _HEADERS, _SETTINGS, _GOAWAY, _CONTINUATION = 0, 1, 4, 7, 9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_UNAUTHENTICATED = "16"  # grpc's status


class NotHTTP2(ValueError):
    """The bytes cannot be the beginning of an HTTP/2 connection."""


@dataclass(frozen=True)
class Request:
    """The first request of a connection."""

    stream: int
    authority: bytes

    @property
    def token(self) -> bytes:
        """The user part of the authority; empty if there is none."""
        return self.authority.rpartition(b"@")[0]


def first_request(data: bytes) -> Request | None:
    """Return the first request in the bytes that a client has sent so far, None if it is incomplete.

    Raises:
        NotHTTP2: the bytes cannot become a request, or are longer than any of torchft's.
    """
    if not data.startswith(PREFACE[: len(data)]):
        raise NotHTTP2("it does not begin as HTTP/2 does")
    at, block, stream = len(PREFACE), b"", 0
    while len(data) >= at + _HEAD:
        length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
        number = int.from_bytes(data[at + 5 : at + _HEAD], "big") & 0x7FFFFFFF
        payload = data[at + _HEAD : at + _HEAD + length]
        if len(payload) < length:
            break
        at += _HEAD + length
        if at > LONGEST:  # before anything is decoded, which may take a microsecond for each byte
            break
        if stream:  # no other frame may come between the frames of one header block
            if (kind, number) != (_CONTINUATION, stream):
                raise NotHTTP2("its headers are not whole")
            block += payload
        elif kind == _HEADERS and number:
            stream, block = number, fragment(payload, flags)
        elif kind in (_DATA, _HEADERS, _CONTINUATION):
            raise NotHTTP2("it does not begin with headers")
        if stream and flags & _END_HEADERS:
            return Request(stream, _authority(block))
    if len(data) >= LONGEST:
        raise NotHTTP2(f"its first request is longer than {LONGEST} bytes")
    return None


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


def _authority(block: bytes) -> bytes:
    try:
        headers = Decoder(max_header_list_size=2 * LONGEST).decode(block, raw=True)
    except HPACKError as error:
        raise NotHTTP2("its headers cannot be read") from error
    return next((bytes(value) for name, value in headers if name == b":authority"), b"")


def denial(stream: int, reason: str) -> bytes:
    """Return the server's whole answer to a refused client: a grpc status with the reason, then GOAWAY."""
    fields = [(":status", "200"), ("content-type", "application/grpc")]
    fields += [("grpc-status", _UNAUTHENTICATED), ("grpc-message", reason)]
    headers = frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, Encoder().encode(fields, huffman=False))
    return frame(_SETTINGS, 0, 0, b"") + headers + frame(_GOAWAY, 0, 0, stream.to_bytes(4, "big") + bytes(4))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
