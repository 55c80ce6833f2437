"""A handshake in which both ends of a connection prove that they belong to the run, before any other byte.

Every run has a key: 32 random bytes that only its controller and its guards know (run_key.py). The
server sends the first message:

    server -> client   MAGIC (16 bytes)   Ns: 32 random bytes
    client -> server   Nc: 32 random bytes   SERVICE (32, padded with zeros)   HMAC(key, "client" Ns Nc address)
    server -> client   HMAC(key, "server" Ns Nc address)

`address` is what the client connects to, HOST:PORT/SERVICE. It is in both proofs, so an attacker who has taken over the
port of a process that has ended cannot relay a client's proof to another server of the run. The key itself is never
sent, and neither side accepts anything from a peer without it. The data that follows is not encrypted: see
docs/security.md.

The proofs are HMAC-SHA256 as in RFC 2104; the nonces make every proof unique.
"""

from __future__ import annotations

import hashlib
import hmac
import os

MAGIC = b"ftslurm gate 1\r\n"
_NONCE = _SERVICE = PROOF = 32
CHALLENGE = len(MAGIC) + _NONCE  # bytes of each of the three messages
ANSWER = _NONCE + _SERVICE + PROOF


class Refused(ConnectionError):
    """The peer does not belong to this run, or does not accept that this process does."""


def challenge() -> bytes:
    """Make the first message of a server, a new one for every connection."""
    return MAGIC + os.urandom(_NONCE)


def answer(key: bytes, said: bytes, address: str) -> tuple[bytes, bytes]:
    """Return a client's answer to a challenge, and the proof to expect from the server.

    Args:
        key: the run's key.
        said: the CHALLENGE bytes that the server has sent.
        address: HOST:PORT/SERVICE that the client has connected to.

    Raises:
        Refused: the server is not a guard of ftslurm.
    """
    if len(said) != CHALLENGE or not said.startswith(MAGIC):
        raise Refused(f"{address} is held by something that is not of this run")
    theirs, ours = said[len(MAGIC) :], os.urandom(_NONCE)
    service = address.rpartition("/")[2].encode()
    if len(service) > _SERVICE:
        raise Refused(f"{address}: the name of a service has at most {_SERVICE} bytes")
    nonces = theirs + ours
    sent = ours + service.ljust(_SERVICE, b"\0") + _prove(key, b"client", nonces, address)
    return sent, _prove(key, b"server", nonces, address)


def admit(key: bytes, said: bytes, answered: bytes, host_port: str) -> tuple[str, bytes] | None:
    """Check a client's answer to our challenge. Return the service that it wants, and our proof for it.

    Return None if the client does not belong to the run.

    Args:
        key: the run's key.
        said: the challenge.
        answered: the ANSWER bytes of the client.
        host_port: our own address as the run's clients use it.
    """
    nonces = said[len(MAGIC) :] + answered[:_NONCE]
    name, proof = answered[_NONCE : _NONCE + _SERVICE].rstrip(b"\0"), answered[_NONCE + _SERVICE :]
    try:
        service = name.decode("ascii")
    except UnicodeDecodeError:
        return None
    address = f"{host_port}/{service}"
    if not hmac.compare_digest(proof, _prove(key, b"client", nonces, address)):
        return None
    return service, _prove(key, b"server", nonces, address)


def _prove(key: bytes, who: bytes, nonces: bytes, address: str) -> bytes:
    return hmac.new(key, b"ftslurm 1 " + who + nonces + address.encode(), hashlib.sha256).digest()
