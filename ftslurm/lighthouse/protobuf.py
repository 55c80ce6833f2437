"""Encodes and decodes the torchft messages that the Lighthouse sends and receives.

The numbers and types are those of proto/torchft.proto of torchft 0.2.0; they are written down here instead of in
generated code, so that no protoc is needed and no second copy of torchft.proto clashes with another library's.

A later torchft may give a member fields that are not written down here (torchft-nightly 2026.10: the handles by which
process groups find each other). They are in `Member.wire`, the bytes of its message, and so in every answer with it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, timestamp_pb2

from ftslurm.lighthouse.quorum import Member, Quorum

SERVICE = "torchft.LighthouseService"
LONGEST_NAME = 1024  # of a replica id or an address, in characters

_Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, tuple[tuple[int, str, int | str], ...]] = {
    "QuorumMember": (
        (1, "replica_id", _Field.TYPE_STRING),
        (2, "address", _Field.TYPE_STRING),
        (3, "store_address", _Field.TYPE_STRING),
        (4, "step", _Field.TYPE_INT64),
        (5, "world_size", _Field.TYPE_UINT64),
        (6, "shrink_only", _Field.TYPE_BOOL),
        (7, "data", _Field.TYPE_STRING),
        (8, "commit_failures", _Field.TYPE_INT64),
    ),
    "Quorum": (
        (1, "quorum_id", _Field.TYPE_INT64),
        (2, "participants", "*.torchft.QuorumMember"),
        (3, "created", ".google.protobuf.Timestamp"),
    ),
    "LighthouseQuorumRequest": ((1, "requester", ".torchft.QuorumMember"),),
    "LighthouseQuorumResponse": ((1, "quorum", ".torchft.Quorum"),),
    "LighthouseHeartbeatRequest": ((1, "replica_id", _Field.TYPE_STRING),),
}


class Malformed(ValueError):
    """The bytes are no such message, or one that no manager sends."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="ftslurm/torchft.proto", package="torchft", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        for number, field_name, kind in fields:
            field = made.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, kind.removeprefix("*")
                field.label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"torchft.{n}")) for n in _MESSAGES}


_CLASS = _classes()
_MEMBER_FIELDS = tuple(name for _, name, _ in _MESSAGES["QuorumMember"])


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
    return _name(_parse("LighthouseHeartbeatRequest", data).replica_id, "replica_id")


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


def write_request(member: Member) -> bytes:
    """Encode a manager's request for a quorum; for tests."""
    return bytes(_CLASS["LighthouseQuorumRequest"](requester=_wire(member)).SerializeToString())


def write_heartbeat(replica_id: str) -> bytes:
    """Encode a manager's heartbeat; for tests."""
    return bytes(_CLASS["LighthouseHeartbeatRequest"](replica_id=replica_id).SerializeToString())


def _parse(name: str, data: bytes) -> Any:
    try:
        return _CLASS[name].FromString(data)
    except message.DecodeError:
        raise Malformed(f"not a {name}") from None


def _member(wire: Any) -> Member:
    fields = {name: getattr(wire, name) for name in _MEMBER_FIELDS}
    member = Member(**fields, wire=bytes(wire.SerializeToString()))
    for name in ("replica_id", "address", "store_address"):
        _name(getattr(member, name), name)
    if member.step < 0:
        raise Malformed(f"step {member.step}: there is no such step")
    return member


def _wire(member: Member) -> Any:
    """Convert a member to a message, with the fields that only later versions of torchft know."""
    wire = _CLASS["QuorumMember"].FromString(member.wire)
    for name in _MEMBER_FIELDS:
        setattr(wire, name, getattr(member, name))
    return wire


def _name(text: str, what: str) -> str:
    if len(text) > LONGEST_NAME:
        raise Malformed(f"{what} of {len(text)} characters")
    return text
