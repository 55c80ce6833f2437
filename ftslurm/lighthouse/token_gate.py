"""The port of a Lighthouse with a token: who has it is connected to grpc, nobody else gets any further than here.

A connection proves itself by the `:authority` of its first request (authority.py). All others on it come from the same
client, which sends the same, and who has the token may do everything anyway: so only the first one is looked at, and
then bytes are passed on in both directions.

The token keeps out who does not have it. It keeps nothing secret: it travels in clear text, as all that torchft sends.
"""

from __future__ import annotations

import asyncio
import hmac
import socket

from ftslurm.guard.sockets import crowded_out
from ftslurm.lighthouse.http2_authority import NotHTTP2, denial, first_request
from ftslurm.lighthouse.output import log

PROVE_WITHIN_S = 1.0  # so long a connection may take to show the token
MOST_UNPROVEN = 64  # connections that have not shown it yet
MOST_TOLD = 50  # lines in the log about who was refused
DENIED = "this Lighthouse wants its token: take the whole address from its .url file, http://TOKEN@host:port"


class Door:
    """Lets connections through to a Unix socket.

    Args:
        token: what they have to show.
        inside: the path of the socket.
    """

    def __init__(self, token: str, inside: str) -> None:
        self.token = token.encode()
        self.inside = inside
        self.unproven: list[Caller] = []  # the oldest first
        self._told: set[tuple[str, str]] = set()

    async def open(self, listener: socket.socket) -> asyncio.Server:
        """Serve on a socket that is bound and listens."""
        return await asyncio.get_running_loop().create_server(lambda: Caller(self), sock=listener)

    def came(self, caller: Caller) -> None:
        """Take a new connection in, for as long as it may take to show the token."""
        if len(self.unproven) >= MOST_UNPROVEN:
            self.unproven[crowded_out([one.host for one in self.unproven])].refuse("there were too many at once")
        self.unproven.append(caller)

    def left(self, caller: Caller) -> None:
        """A connection has shown the token, or is gone."""
        if caller in self.unproven:
            self.unproven.remove(caller)

    def tell(self, host: str, why: str) -> None:
        """Log a refusal: once for each host and reason, and not for ever."""
        if (host, why) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((host, why))
            log(f"refused a connection from {host}: {why}")


class _End(asyncio.Protocol):
    """One end of a connection that is passed on: what comes in here goes out at the other one."""

    def __init__(self, other: _End | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 asyncio calls it so
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class Caller(_End):
    """A connection from outside, until it has shown the token; then one end of two."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self.door = door
        self.host = "?"
        self.held: bytes | None = b""  # what it has sent so far; None: no more is wanted
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.host = str((transport.get_extra_info("peername") or "?")[0]).removeprefix("::ffff:")  # IPv4 in IPv6
        self.door.came(self)
        self._limit = asyncio.get_running_loop().call_later(PROVE_WITHIN_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
        elif self.held is not None:
            self.held += data
            if self._dialling is None:
                self._look(self.held)

    def _look(self, data: bytes) -> None:
        try:
            request = first_request(data)
        except NotHTTP2 as error:
            self.refuse(str(error))
            return
        if request is None:
            return
        if hmac.compare_digest(request.token, self.door.token):
            self._proven()
            return
        self.door.tell(self.host, "it shows another token" if request.token else "it shows no token")
        self.held = None
        assert self.transport is not None
        self.transport.write(denial(request.stream, DENIED))  # it is read to its end until then, or could be lost

    def _proven(self) -> None:
        self._limit.cancel()
        self.door.left(self)
        assert self.transport is not None
        self.transport.pause_reading()
        self._dialling = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        assert self.transport is not None
        assert self.held is not None
        try:
            _, inner = await asyncio.get_running_loop().create_unix_connection(lambda: _End(self), self.door.inside)
        except OSError as error:
            log(f"a connection from {self.host} is not passed on: {error}")
            self.transport.close()
            return
        self.other, held, self.held = inner, self.held, None
        assert inner.transport is not None
        if self.transport.is_closing():
            inner.transport.close()
            return
        inner.transport.write(held)
        self.transport.resume_reading()

    def _too_late(self) -> None:
        self.refuse(f"it shows no token within {PROVE_WITHIN_S:g} s" if self.held is not None else "")

    def refuse(self, why: str) -> None:
        """Hang up."""
        self._limit.cancel()
        self.door.left(self)
        if why:
            self.door.tell(self.host, why)
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._limit.cancel()
        self.door.left(self)
        super().connection_lost(error)
