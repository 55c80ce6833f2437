"""Encodes and decodes the torchft messages that the Lighthouse sends and receives.

The numbers and types are those of proto/torchft.proto of torchft 0.2.0; they are written down here instead of in
generated code, so that no protoc is needed and no second copy of torchft.proto clashes with another library's.

A later torchft may give a member fields that are not written down here (torchft-nightly 2026.10: the handles by which
process groups find each other). They are in `Member.wire`, the bytes of its message, and so in every answer with it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format, timestamp_pb2

from ftslurm.lighthouse.grpc_server import CallError, Status
from ftslurm.lighthouse.quorum import Member, Quorum

SERVICE = "torchft.LighthouseService"

_PROTO = """
    name: "ftslurm/torchft.proto" package: "torchft" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
    message_type {
        name: "QuorumMember"
        field { number: 1 name: "replica_id" type: TYPE_STRING }
        field { number: 2 name: "address" type: TYPE_STRING }
        field { number: 3 name: "store_address" type: TYPE_STRING }
        field { number: 4 name: "step" type: TYPE_INT64 }
        field { number: 5 name: "world_size" type: TYPE_UINT64 }
        field { number: 6 name: "shrink_only" type: TYPE_BOOL }
        field { number: 7 name: "data" type: TYPE_STRING }
        field { number: 8 name: "commit_failures" type: TYPE_INT64 }
    }
    message_type {
        name: "Quorum"
        field { number: 1 name: "quorum_id" type: TYPE_INT64 }
        field { number: 2 name: "participants" label: LABEL_REPEATED type_name: ".torchft.QuorumMember" }
        field { number: 3 name: "created" type_name: ".google.protobuf.Timestamp" }
    }
    message_type {
        name: "LighthouseQuorumRequest"
        field { number: 1 name: "requester" type_name: ".torchft.QuorumMember" }
    }
    message_type {
        name: "LighthouseQuorumResponse"
        field { number: 1 name: "quorum" type_name: ".torchft.Quorum" }
    }
    message_type {
        name: "LighthouseHeartbeatRequest"
        field { number: 1 name: "replica_id" type: TYPE_STRING }
    }
"""


class Malformed(CallError):
    """The bytes are no such message, or one that no manager sends."""

    def __init__(self, reason: str) -> None:
        super().__init__(Status.INVALID_ARGUMENT, reason)


def _classes() -> dict[str, Any]:
    """Return the classes of the messages, in a pool of their own."""
    file = text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    found = {made.name: pool.FindMessageTypeByName(f"torchft.{made.name}") for made in file.message_type}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


_CLASS = _classes()
_MEMBER_FIELDS = tuple(field.name for field in _CLASS["QuorumMember"].DESCRIPTOR.fields)


def read_request(data: bytes) -> Member:
    """Decode a request for a quorum; return the member that asks.

    Raises:
        Malformed: with a reason for a person.
    """
    request = _parse("LighthouseQuorumRequest", data)
    if not request.HasField("requester"):
        raise Malformed("missing requester")
    return _member(request.requester)


def read_heartbeat(data: bytes) -> str:
    """Return the replica id of a heartbeat.

    Raises:
        Malformed: with a reason for a person.
    """
    return str(_parse("LighthouseHeartbeatRequest", data).replica_id)


def read_quorum(data: bytes) -> Quorum:
    """Decode a quorum that write_quorum has encoded.

    Raises:
        Malformed: the bytes are no quorum.
    """
    quorum = _parse("LighthouseQuorumResponse", data).quorum
    return Quorum(int(quorum.quorum_id), tuple(_member(m) for m in quorum.participants))


def write_quorum(quorum: Quorum, created: float) -> bytes:
    """Encode the answer to every member of a quorum. `created` is unix time."""
    response = _CLASS["LighthouseQuorumResponse"]()
    response.quorum.quorum_id = quorum.id
    response.quorum.participants.extend(map(_wire, quorum.members))
    response.quorum.created.FromNanoseconds(int(created * 1e9))
    return bytes(response.SerializeToString())


def _parse(name: str, data: bytes) -> Any:
    try:
        return _CLASS[name].FromString(data)
    except message.DecodeError:
        raise Malformed(f"not a {name}") from None


def _member(wire: Any) -> Member:
    fields = {name: getattr(wire, name) for name in _MEMBER_FIELDS}
    member = Member(**fields, wire=bytes(wire.SerializeToString()))
    if member.step < 0:
        raise Malformed(f"step {member.step}: there is no such step")
    return member


def _wire(member: Member) -> Any:
    """Convert a member to a message, with the fields that only later versions of torchft know."""
    wire = _CLASS["QuorumMember"].FromString(member.wire)
    for name in _MEMBER_FIELDS:
        setattr(wire, name, getattr(member, name))
    return wire
