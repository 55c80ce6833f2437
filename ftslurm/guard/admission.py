"""The only port of a guard that other nodes can reach. It connects processes of the run to the servers behind it.

Those are the servers of the guard's worker: the Lighthouse, a group's store, a manager, ... A client
gets a challenge and has one second to answer it (security/handshake.py); then it is connected to the service it
requested. torchft's and torch's servers listen on loopback, where only the guard can connect (loopback_filter.py), and
the guard copies the bytes. Servers in Python do not listen at all: they are given the connection itself.
At most MOST_UNPROVEN clients may be unproven; beyond that, one is closed for each new one.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable

from ftslurm.guard.interfaces import family
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.guard.sockets import Host, Listener, Refusals, TimeLimit, exactly, relay
from ftslurm.security import handshake

MOST_UNPROVEN = 512  # connections without a completed handshake; hundreds of guards may dial one store at once
PROVE_WITHIN_S = 1.0
OFFERED_WITHIN_S = 10.0  # an address may be known before its server is up
BUSY_S = 0.01  # between two tries to hand a connection to a server that is busy


# A server that is dialled, or the socket pair over which one is given the admitted connections (SCM_RIGHTS).
Target = FilteredListener | socket.socket


class Admission(Listener):
    """The port.

    Args:
        key: returns the run's key; b"": it is not known yet.
    """

    def __init__(self, key: Callable[[], bytes], refusals: Refusals) -> None:
        super().__init__(refusals)
        self.key = key
        self.host_port = ""
        self.unproven: dict[TimeLimit, str] = {}  # and their hosts, oldest first
        self.targets: dict[str, Target] = {}
        self.offered = asyncio.Event()

    def open(self, host: str, address: str) -> str:
        """Listen, unless already listening. Return HOST:PORT, as it is announced to the run.

        Args:
            host: this machine's name or address for other nodes.
            address: where to listen; "": at all addresses.

        Raises:
            OSError: no port is available.
        """
        if not self.host_port:
            kind = family(address)
            both = not address and kind == socket.AF_INET6
            listener = socket.create_server((address, 0), family=kind, backlog=1024, dualstack_ipv6=both)
            # As addresses.read returns it: host names are case-insensitive.
            self.host_port = f"{host.lower()}:{listener.getsockname()[1]}"
            self.listen(listener)
        return self.host_port

    def offer(self, service: str, target: Target) -> None:
        """Set the server of a service, also for the clients that wait for it."""
        self.withdraw(service)
        if isinstance(target, socket.socket):
            target.setblocking(False)
        self.targets[service] = target
        self.offered.set()  # all that wait now
        self.offered.clear()

    def withdraw(self, service: str) -> None:
        """Remove a service. Existing connections stay."""
        if (old := self.targets.pop(service, None)) is not None:
            old.close()

    async def close(self) -> None:
        await super().close()
        for service in list(self.targets):
            self.withdraw(service)

    async def serve(self, inbound: socket.socket, peer: Host) -> None:
        """Have a client prove that it is of the run, and connect it to its server."""
        service = await self._prove(inbound, str(peer[0]))
        if service is None:
            return
        with TimeLimit(OFFERED_WITHIN_S):
            outbound = await self._connect(service, inbound)
        if outbound is not None:
            with outbound:
                await relay(inbound, outbound)

    async def _prove(self, inbound: socket.socket, host: str) -> str | None:
        """Return the service that a client of the run wants; None: it could not prove that it is one."""
        said, heard = handshake.challenge(), bytearray()
        self._make_room()
        limit, loop = TimeLimit(PROVE_WITHIN_S), asyncio.get_running_loop()
        self.unproven[limit] = host
        try:
            with limit:
                await loop.sock_sendall(inbound, said)
                answer = await exactly(inbound, handshake.ANSWER, heard)
                key = self.key()
                admitted = handshake.admit(key, said, answer, self.host_port) if key else None
                if admitted is not None:
                    service, proof = admitted
                    await loop.sock_sendall(inbound, proof)
                    return service
        except TimeoutError:
            if limit not in self.unproven:  # it was pushed out, which is told
                return None
        except OSError:
            if not heard:
                return None
        finally:
            self.unproven.pop(limit, None)
        port = self.host_port.rpartition(":")[2]
        words = f"a connection from {host} to port {port}, which did not prove that it is of this run"
        self.refusals.tell("stranger", words)
        return None

    def _make_room(self) -> None:
        """At MOST_UNPROVEN unproven connections, push out the oldest of the host with the most.

        So a flood pushes out its own connections. Other clients on the host of a flood have to be faster than it,
        which they are: a client answers the challenge as soon as it is connected, and dials again if it was pushed out.
        """
        if len(self.unproven) < MOST_UNPROVEN:
            return
        [(busiest, count)] = Counter(self.unproven.values()).most_common(1)
        oldest = next(limit for limit, host in self.unproven.items() if host == busiest)
        del self.unproven[oldest]
        oldest.end()
        self.refusals.tell("flood", f"{count} connections from {busiest} at a time that do not prove themselves")

    async def _connect(self, service: str, inbound: socket.socket) -> socket.socket | None:
        """Connect to the server of a service, once it is there; None: the server was given the connection itself."""
        while True:
            while (target := self.targets.get(service)) is None:
                await self.offered.wait()
            try:
                if isinstance(target, socket.socket):
                    socket.send_fds(target, [b"\0"], [inbound.fileno()])
                    return None
                with target.admitted() as connection:
                    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", target.port))
                    return connection
            except BlockingIOError:  # it does not take connections as fast as they come
                await asyncio.sleep(BUSY_S)
