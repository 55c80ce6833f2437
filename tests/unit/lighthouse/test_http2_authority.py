"""The authority in the first bytes of a connection, and the connection that is closed in a flood."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder

from ftslurm.guard.sockets import crowded_out
from ftslurm.lighthouse.http2_authority import LONGEST, PREFACE, NotHTTP2, Request, denial, first_request

FIELDS = [(":method", "POST"), (":scheme", "http"), (":authority", "T0ken@node1:29510"), (":path", "/x"), ("te", "t")]
BLOCK = Encoder().encode(FIELDS)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


SETTINGS = frame(4, 0, 0, bytes(24)) + frame(8, 0, 0, bytes(4))  # and a window update, as torchft's client sends them
WHOLE = PREFACE + SETTINGS + frame(1, 4, 1, BLOCK)


@pytest.mark.parametrize(
    "headers",
    [
        frame(1, 4, 1, BLOCK),
        frame(1, 4 | 8, 1, b"\x03" + BLOCK + b"abc"),  # padded
        frame(1, 4 | 32, 1, b"\0\0\0\0\x10" + BLOCK),  # with a priority
        frame(1, 4 | 8 | 32, 1, b"\x01\0\0\0\0\x10" + BLOCK + b"a"),
        frame(1, 0, 1, BLOCK[:7]) + frame(9, 0, 1, BLOCK[7:9]) + frame(9, 4, 1, BLOCK[9:]),  # continued
        frame(6, 0, 0, bytes(8)) + frame(1, 4, 1, BLOCK) + b"whatever follows",  # after a ping
    ],
)
def test_the_authority_is_that_of_the_first_request(headers: bytes) -> None:
    request = first_request(PREFACE + SETTINGS + headers)
    assert request == Request(1, b"T0ken@node1:29510")
    assert request.token == b"T0ken"


def test_as_long_as_the_request_is_not_whole_there_is_none() -> None:
    assert all(first_request(WHOLE[:length]) is None for length in range(len(WHOLE)))
    assert first_request(WHOLE) is not None


@pytest.mark.parametrize(
    ("authority", "token"), [(b"node1:29510", b""), (b"@node1", b""), (b"a@b@c", b"a@b"), (b"", b"")]
)
def test_without_a_user_part_there_is_no_token(authority: bytes, token: bytes) -> None:
    assert Request(1, authority).token == token


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
        PREFACE + frame(0, 0, 1, b"data before headers"),
        PREFACE + frame(9, 4, 1, BLOCK),  # continued, but not begun
        PREFACE + frame(1, 0, 1, BLOCK) + SETTINGS,  # not continued
        PREFACE + frame(1, 0, 1, BLOCK) + frame(9, 4, 3, BLOCK),  # by another stream
        PREFACE + frame(1, 4, 0, BLOCK),
        PREFACE + frame(1, 4 | 8, 1, b"\xff" + BLOCK),  # more padding than frame
        PREFACE + frame(1, 4 | 8, 1, b""),
        PREFACE + frame(1, 4, 1, b"\xff" * 20),  # no headers
        PREFACE + frame(1, 4, 1, b"\x40\x01a\x7f\x81\x1f" + b"b" * 4000),
        PREFACE + frame(4, 0, 0, b"") * (LONGEST // 9),
        PREFACE + frame(1, 4, 1, BLOCK + b"\x20" * LONGEST),  # whole, but a microsecond for each byte
        PREFACE + b"\0\xff\xff" + frame(1, 4, 1, BLOCK)[3:] + bytes(LONGEST),  # of 65535 bytes
    ],
)
def test_what_is_no_request_is_told_from_one_that_is_not_whole(junk: bytes) -> None:
    with pytest.raises(NotHTTP2):
        first_request(junk)


def test_headers_that_unfold_to_far_more_than_they_are_long_are_refused() -> None:
    field, again = b"\x40\x01a\x64" + b"b" * 100, b"\xbe"  # a field that goes into the table, and is taken from there
    with pytest.raises(NotHTTP2):
        first_request(PREFACE + frame(1, 4, 1, field + again * 900))
    assert first_request(PREFACE + frame(1, 4, 1, field + again * 10)) == Request(1, b"")


def test_random_bytes_do_no_harm() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        data = bytearray(WHOLE)
        at = chance.randrange(len(PREFACE), len(data))
        data[at : at + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(12))
        try:
            first_request(bytes(data))
        except NotHTTP2:
            continue


def test_a_denial_is_an_answer_to_that_request_with_the_reason() -> None:
    said = denial(5, "no token")
    assert said.startswith(frame(4, 0, 0, b""))
    rest = said[9:]
    length = int.from_bytes(rest[:3], "big")
    assert (rest[3], rest[4], int.from_bytes(rest[5:9], "big")) == (1, 5, 5)  # headers, the last of their stream
    assert dict(Decoder().decode(rest[9 : 9 + length])) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "16",
        "grpc-message": "no token",
    }


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
