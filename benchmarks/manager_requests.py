"""Encodes what a manager of torchft sends to a Lighthouse."""

from __future__ import annotations

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.quorum import Member


def quorum(member: Member) -> bytes:
    """Return a request for a quorum."""
    return bytes(protobuf._CLASS["LighthouseQuorumRequest"](requester=protobuf._wire(member)).SerializeToString())


def heartbeat(replica_id: str) -> bytes:
    """Return a heartbeat."""
    return bytes(protobuf._CLASS["LighthouseHeartbeatRequest"](replica_id=replica_id).SerializeToString())
