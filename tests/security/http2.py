"""HTTP/2 frames to disturb a gRPC server: bytes, no state."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _GOAWAY = 0x0, 0x1, 0x4, 0x7
_END_STREAM, _END_HEADERS = 0x1, 0x4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


HELLO = PREFACE + frame(_SETTINGS, 0, 0, b"")


def headers(stream: int, path: str) -> bytes:
    """Return the headers of a call (HPACK's static table, nothing compressed)."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    block = b"\x83\x86" + b"\x04" + text(path) + b"\x01" + text("localhost")  # POST, http, :path, :authority
    block += b"\x0f\x10" + text("application/grpc") + b"\x00" + text("te") + text("trailers")
    return frame(_HEADERS, _END_HEADERS, stream, block)


def call(stream: int, path: str, message: bytes) -> bytes:
    """Return a whole call with one message. `stream` is odd, and larger with each call of a connection."""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return headers(stream, path) + frame(_DATA, _END_STREAM, stream, body)


def goaway(text: bytes) -> bytes:
    """Return a GOAWAY frame with a reason of at most 16 KB."""
    return frame(_GOAWAY, 0, 0, b"\0" * 4 + (11).to_bytes(4, "big") + text)
