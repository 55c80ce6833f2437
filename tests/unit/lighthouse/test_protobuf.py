"""The wire format, against bytes written by hand from torchft.proto."""

from __future__ import annotations

import contextlib
import random

import manager_requests
import pytest

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.quorum import Member, Quorum

MEMBER = Member("g0:uuid", "http://n1:1", "n1:2", 258, 8, True, 3, '{"a": 1}')
WIRE = (
    b"\x0a\x07g0:uuid" + b"\x12\x0bhttp://n1:1" + b"\x1a\x04n1:2" + b"\x20\x82\x02" + b"\x28\x08" + b"\x30\x01"
    b'\x3a\x08{"a": 1}' + b"\x40\x03"
)


def test_a_request_is_read_as_torchft_writes_it() -> None:
    assert protobuf.read_request(b"\x0a" + bytes([len(WIRE)]) + WIRE) == MEMBER


def test_a_quorum_is_written_as_torchft_reads_it() -> None:
    data = protobuf.write_quorum(Quorum(7, (MEMBER,)), 1.5)
    quorum = b"\x08\x07" + b"\x12" + bytes([len(WIRE)]) + WIRE + b"\x1a\x08\x08\x01\x10\x80\xca\xb5\xee\x01"
    assert data == b"\x0a" + bytes([len(quorum)]) + quorum


def test_a_quorum_survives_being_written_and_read() -> None:
    quorum = Quorum(2**40, (MEMBER, Member("ü" * 1000)))
    assert protobuf.read_quorum(protobuf.write_quorum(quorum, 0.0)) == quorum


# Field 9 a repeated string, 10 a message, 11 a varint, 12 a fixed32, 13 a fixed64: not in their order.
NEWER = (
    b"\x4a\x02h0" + b"\x65\x01\x02\x03\x04" + b"\x4a\x02h1" + b"\x52\x02\x08\x01" + b"\x58\xac\x02" + b"\x69" + bytes(8)
)


def test_what_a_newer_torchft_adds_to_a_request_is_ignored() -> None:
    assert protobuf.read_request(manager_requests.quorum(MEMBER) + b"\x7a\x03new") == MEMBER


def test_what_a_newer_torchft_says_of_a_member_is_in_the_answer_byte_for_byte() -> None:
    wire = WIRE + NEWER
    member = protobuf.read_request(b"\x0a" + bytes([len(wire)]) + wire)
    assert member == MEMBER
    answer = protobuf.write_quorum(Quorum(7, (Member("other"), member)), 1.5)
    assert b"\x12" + bytes([len(wire)]) + wire + b"\x1a" in answer
    assert protobuf.read_quorum(answer).members == (Member("other"), member)


def test_a_member_that_has_only_unknown_fields_is_read() -> None:
    assert protobuf.read_request(b"\x0a" + bytes([len(NEWER)]) + NEWER) == Member("", world_size=0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "missing requester"),
        (b"\xff", "not a LighthouseQuorumRequest"),
        (b"\x0a\x05\x0a\x03\xff\xff\xff", "not a LighthouseQuorumRequest"),  # no UTF-8
        (manager_requests.quorum(Member("x", step=-1)), "step -1"),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(protobuf.Malformed, match=says):
        protobuf.read_request(data)


def test_random_bytes_are_refused_or_read_and_nothing_else() -> None:
    chance = random.Random(0)
    real = manager_requests.quorum(MEMBER)
    for _ in range(5000):
        data = bytearray(real if chance.random() < 0.5 else chance.randbytes(chance.randrange(60)))
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        for read in (protobuf.read_request, protobuf.read_heartbeat, protobuf.read_quorum):
            with contextlib.suppress(protobuf.Malformed):
                read(bytes(data))
