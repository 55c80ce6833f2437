"""The token of a stand-alone Lighthouse, and the port that lets only connections with the token reach the server.

A connection shows the token in the `:authority` of its first request (http2_authority.py). Later requests of the
connection come from the same client, so only the first one is checked; then the connection is the server's.

The token keeps out clients without it. Nothing is encrypted: the token travels in clear text, as all torchft traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Mapping

from ftslurm.errors import ConfigError
from ftslurm.guard.sockets import crowded_out
from ftslurm.lighthouse.grpc_server import accept
from ftslurm.lighthouse.http2_authority import NotHTTP2, denial, first_request
from ftslurm.lighthouse.output import log

VARIABLE = "FTSLURM_LIGHTHOUSE_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{22,200}")  # what may stand in a URL as it is; 22 are 128 bits in base64
PROVE_WITHIN_S = 1.0  # a connection must show the token within this time
MOST_UNPROVEN = 256  # connections at once that have not shown it yet
MOST_TOLD = 50  # lines in the log about refused connections
DENIED = "this Lighthouse wants its token: take the whole address from its .url file, http://TOKEN@host:port"


class Door:
    """Lets only connections with the token reach the server.

    Args:
        token: the token they must show.
        serve: makes the server's protocol for a connection.
    """

    def __init__(self, token: str, serve: Callable[[], asyncio.Protocol]) -> None:
        self.token = token.encode()
        self.serve = serve
        self.unproven: list[Caller] = []  # the oldest first
        self._told: set[tuple[str, str]] = set()

    async def open(self, listener: socket.socket) -> asyncio.Server:
        """Serve on a socket that is bound and listens."""
        return await accept(listener, lambda: Caller(self))

    def came(self, caller: Caller) -> None:
        """Add a new connection; it has PROVE_WITHIN_S to show the token."""
        if len(self.unproven) >= MOST_UNPROVEN:
            self.unproven[crowded_out([one.host for one in self.unproven])].refuse("there were too many at once")
        self.unproven.append(caller)

    def left(self, caller: Caller) -> None:
        """Remove a connection that has shown the token or is closed."""
        if caller in self.unproven:
            self.unproven.remove(caller)

    def tell(self, host: str, why: str) -> None:
        """Log a refusal, once for each host and reason, MOST_TOLD in all."""
        if (host, why) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((host, why))
            log(f"refused a connection from {host}: {why}")


class Caller(asyncio.Protocol):
    """A connection from outside until it has shown the token; then the server's protocol takes its place."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.host = "?"
        self.held: bytes | None = b""  # received so far; None: no longer collected
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.host = str((transport.get_extra_info("peername") or "?")[0]).removeprefix("::ffff:")  # IPv4 in IPv6
        self.door.came(self)
        self._limit = asyncio.get_running_loop().call_later(PROVE_WITHIN_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self.held is not None:
            self.held += data
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
            self._proven(data)
            return
        self.door.tell(self.host, "it shows another token" if request.token else "it shows no token")
        self.held = None
        assert self.transport is not None
        self.transport.write(denial(request.stream, DENIED))  # it is read to its end until then, or could be lost

    def _proven(self, data: bytes) -> None:
        self._limit.cancel()
        self.door.left(self)
        assert self.transport is not None
        served = self.door.serve()
        self.transport.set_protocol(served)
        served.connection_made(self.transport)
        served.data_received(data)

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

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 asyncio calls it so
        self._limit.cancel()
        self.door.left(self)


def token(path: str, environ: Mapping[str, str]) -> str:
    """Return the token in the environment, else the one in the file, else a random one that is written to the file.

    It is never in a command line, which every user of the machine can read.

    Raises:
        ConfigError: it is no token, or others may read or write its file.
    """
    if (given := environ.get(VARIABLE)) is not None:
        return _checked(given, VARIABLE)
    try:
        return _checked(_read(path), path)
    except FileNotFoundError:
        made = secrets.token_urlsafe(32)
        write_private(path, made + "\n")
        return made


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd) as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise ConfigError(f"{path}: must be a file that is yours and that nobody else may read: chmod 600 {path}")
        return file.read(1024).strip()


def _checked(text: str, where: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{where}: a token has 22 to 200 letters, digits or . _ ~ - (it becomes part of a URL)")
    return text


def write_private(path: str, text: str) -> None:
    """Replace a file of mode 0600 atomically."""
    part = f"{path}.{secrets.token_hex(8)}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
