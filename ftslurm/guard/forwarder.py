"""A port on loopback with a fixed address, for a Lighthouse, parameter server, store or manager that may move.

torchft's manager is given the Lighthouse's address once. So it gets the address of a forwarder in its guard, which
forwards the bytes to the Lighthouse's current address. While the Lighthouse is down, the forwarder holds connections
and dials ten times a second; a manager itself would wait longer after each failure, up to 10 s (T: src/retry.rs).
The clients of a parameter server use a forwarder in the same way.

It serves only processes of this user (the kernel names the owner of a connection). It and a server of the run prove to
each other that they have the run's key (security/handshake.py) before it forwards a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import os
import socket
import time
from collections.abc import Callable, Iterator

from ftslurm.guard.interfaces import family, resolve
from ftslurm.guard.sockets import Host, Listener, Refusals, TimeLimit, exactly, has_hung_up, relay
from ftslurm.protocol import addresses
from ftslurm.security import handshake, socket_owners

BACKLOG = 512
DIAL_FOR_S = 10.0  # time-out of an attempt to connect; then the address is dialled again, if the server may move
DIAL_AGAIN_S = 0.1
RESOLVE_AGAIN_S = 0.5
KEPT_S = 1.5  # longer than a Lighthouse takes to hand over to its successor
TELL_S = 5.0  # a server that has not been reached for this long, while a client waits, is reported after the next try


class Forwarder(Listener):
    """Listens on loopback, and forwards to a server.

    Args:
        url: the address of a server of this run (addresses.py), or of another one, which gets the bytes without a
            handshake.
        key: returns the run's key.
        warn: is told what the user has to know.
        moves: whether the server may come back, at this or another address: then connections are held while it is down,
            else they are closed.
        look: called with this and the inode of each client's socket.

    Raises:
        OSError: no port is available.
    """

    def __init__(
        self,
        url: str,
        key: Callable[[], bytes],
        refusals: Refusals,
        warn: Callable[[str], object] = lambda _: None,
        moves: bool = True,
        look: Callable[[Forwarder, int], object] = lambda *_: None,
    ) -> None:
        super().__init__(refusals)
        self.key = key
        self.warn = warn
        self.moves = moves
        self.look = look
        self.until_moved: set[TimeLimit] = set()  # of what ends when the server moves
        self.moved = asyncio.get_running_loop().create_future()  # done when the server has another address
        self.target: str | None = None
        self.go_to(url)
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.address = listener.getsockname()
        self.listen(listener)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.address[1]}"

    def go_to(self, url: str) -> None:
        """Set the address of the server; "": it has none now. Clients dial again.

        Connections to the old one are closed after KEPT_S: it closes them itself when the new one takes over.
        """
        if url != self.target:
            self.target, self.where = url, addresses.read(url)
            self.addresses: list[str] = []  # the one that answered last first
            self.known_since = time.monotonic()
            self.is_settled = False  # the address has been reached, or reported
            self.problem = ""  # why the last attempt to connect has failed
            for limit in tuple(self.until_moved):
                if limit.seconds == DIAL_FOR_S:
                    limit.end()
                else:
                    asyncio.get_running_loop().call_later(KEPT_S, limit.end)
        self.moved.set_result(None)
        self.moved = asyncio.get_running_loop().create_future()

    async def serve(self, inbound: socket.socket, peer: Host) -> None:
        """Connect a client of this user to the server."""
        owner = socket_owners.owner_of(peer, self.address)
        if owner is None:
            return  # the client has hung up
        if owner[0] != os.getuid():
            words = f"a connection of user {owner[0]} to this worker's way to {self.target or 'a server'}"
            self.refusals.tell("forwarder", words)
            return
        self.look(self, owner[1])
        outbound = await self._reach(inbound)
        if outbound is not None:
            with outbound, self._until_it_moves():
                if not has_hung_up(inbound):  # what it has sent is not meant any more
                    await relay(inbound, outbound)

    async def hand_over(self, channel: socket.socket) -> None:
        """Send a connection to the server over a channel, or why there is none."""
        with channel, contextlib.suppress(OSError):
            for address in await self._look_up():
                if (outbound := await self._dial(address)) is not None:
                    with outbound:
                        socket.send_fds(channel, [b"\0"], [outbound.fileno()])
                    return
            channel.send(self._why().encode())

    @contextlib.contextmanager
    def _until_it_moves(self, seconds: float = float("inf")) -> Iterator[None]:
        """End what the block waits for when the server moves, and after some seconds: it raises TimeoutError."""
        limit = TimeLimit(seconds)
        self.until_moved.add(limit)
        try:
            with limit:
                yield
        finally:
            self.until_moved.discard(limit)

    async def _reach(self, client: socket.socket) -> socket.socket | None:
        """Return a connection to the server; None: the client has hung up, or the server does not move and is down."""
        since = time.monotonic()
        while not has_hung_up(client):
            moved, addresses = self.moved, await self._look_up()
            for address in addresses:
                if not moved.done() and (outbound := await self._dial(address)) is not None:
                    return outbound
            self._tell_if_out_of_reach(max(since, self.known_since))
            if addresses and not self.moves:
                return None
            pause_s = DIAL_AGAIN_S if addresses else RESOLVE_AGAIN_S
            await asyncio.wait([moved], timeout=pause_s if self.where is not None else None)
        return None

    async def _look_up(self) -> list[str]:
        """Return the server's addresses; none: there are none at the moment, or it has just moved.

        The machine that connects looks up the name. A numeric address announced by the other machine would be wrong
        where its own name resolves to 127.0.1.1, or where it has several networks.
        """
        where, moved = self.where, self.moved
        if where is not None and not self.addresses:
            asked = asyncio.get_running_loop().run_in_executor(None, resolve, where.host)  # it may take a minute
            await asyncio.wait([asked, moved], return_when=asyncio.FIRST_COMPLETED)
            if moved.done():
                return []
            self.addresses = asked.result()
        return [*self.addresses]

    async def _dial(self, address: str) -> socket.socket | None:
        """Return a connection to an address of the server; None: it does not answer, or the server has moved."""
        moved, where = self.moved, self.where
        assert where is not None
        try:
            with contextlib.ExitStack() as opened, self._until_it_moves(DIAL_FOR_S):
                outbound = opened.enter_context(
                    socket.socket(family(address), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                )
                await asyncio.get_running_loop().sock_connect(outbound, (address, where.port))
                # On one machine a socket can connect to itself at a port without a listener; no server could bind it.
                if outbound.getsockname() == outbound.getpeername():
                    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                await self._prove(outbound)
                self.is_settled = True
                self.addresses.sort(key=lambda one: one != address)
                opened.pop_all()
                return outbound
        except OSError as error:
            if isinstance(error, handshake.Refused):
                self.refusals.tell("server", str(error))
            if not moved.done():
                self.problem = f"{address}: {os.strerror(error.errno) if error.errno else error}"
            return None

    async def _prove(self, outbound: socket.socket) -> None:
        """Answer the server's challenge, then check its proof.

        Raises:
            OSError: the server is not of this run, or hangs up.
        """
        if self.where is None or self.where.service is None:
            return
        said = await exactly(outbound, handshake.CHALLENGE)
        sent, expected = handshake.answer(self.key(), said, self.where.dialled)
        await asyncio.get_running_loop().sock_sendall(outbound, sent)
        if not hmac.compare_digest(await exactly(outbound, handshake.PROOF), expected):
            raise handshake.Refused(f"{self.where.dialled} is held by something that is not of this run")

    def _why(self) -> str:
        """Return why the server is not reached."""
        return self.problem or "this node knows no address of that name"

    def _tell_if_out_of_reach(self, since: float) -> None:
        """Report, once for each address, that a client waits for it since then, if that is too long."""
        if time.monotonic() >= since + TELL_S and self.target and not self.is_settled:
            self.is_settled = True
            self.warn(
                f"cannot reach {self.target} ({self._why()}): name a network that all nodes share in "
                f"cluster.interface=, and see that no firewall closes its ports"
            )
