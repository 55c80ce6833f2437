"""The only port of a guard that other nodes can reach. It connects processes of the run to the servers behind it.

Those are the servers of the guard's worker: the Lighthouse, a group's store, a manager, a parameter server. A client
gets a challenge and has one second to answer it (security/handshake.py); then it is connected to the service it
requested. torchft's and torch's servers listen on loopback, where only the guard can connect (loopback_filter.py), and
the guard copies the bytes. Our Lighthouse does not listen at all: it is given the connection itself.
At most MOST_STRANGERS clients may be unproven; beyond that, one is closed for each new one (sockets.crowded_out).

The gate runs in the event loop of the guard: nothing may block.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import Protocol

from ftslurm.guard.interfaces import family
from ftslurm.guard.sockets import Refusals, Splice, accept_some, crowded_out, listen
from ftslurm.security import handshake

MOST_STRANGERS = 64  # connections without a completed handshake
MOST_GUESTS = 4096  # connections in all, without those that are handed over
PROVE_WITHIN_S = 1.0
OFFERED_WITHIN_S = 10.0  # an address may be known before its server is up
BUSY_S = 0.01  # between two tries to hand a connection to a server that is busy
BIND_FOR_S = 2.0  # longest wait for the port of a predecessor; then any other is taken
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Listening(Protocol):
    """A server that the guard connects to."""

    def dial(self) -> socket.socket:
        """Return a non-blocking socket that is being connected.

        Raises:
            OSError: the connection cannot be started.
        """

    def settled(self, far: socket.socket) -> None:
        """Handle that the socket is connected, or has failed."""

    def close(self) -> None: ...


class TakesOver:
    """A server that is given the admitted connections: their descriptors, over a socket pair (SCM_RIGHTS)."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel

    def give(self, near: socket.socket) -> None:
        """Give the server a copy of a connection's descriptor.

        Raises:
            BlockingIOError: the server does not take connections as fast as they come.
            OSError: it is gone.
        """
        socket.send_fds(self.channel, [b"\0"], [near.fileno()])

    def close(self) -> None:
        self.channel.close()


Target = Listening | TakesOver


class Gate:
    """The port. The owner of the selector calls `key.data(events)` for ready sockets, and `tend`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        name: str,
        key: Callable[[], bytes],
        refusals: Refusals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the gate; it does not listen before `open`.

        Args:
            name: this machine's name for other nodes, unless `announce` sets another; "127.0.0.1": only this machine
                can connect.
            key: returns the run's key; b"": it is not known yet.
        """
        self.selector = selector
        self.announce(name, name if name == "127.0.0.1" else "")
        self.key = key
        self.refusals = refusals
        self.clock = clock
        self.listener: socket.socket | None = None
        self.host_port = ""
        self.guests: dict[_Guest, None] = {}  # oldest first
        self.targets: dict[str, Target] = {}
        self.next_accept = 0.0
        self.accepting = False

    def announce(self, name: str, address: str) -> None:
        """Set this machine's name for other nodes, and the address to listen at ("": all), before `open`."""
        self.name = name.lower()  # as addresses.read returns it: host names are case-insensitive
        self.address = address

    def open(self, port: int = 0) -> str:
        """Listen, unless already listening. Return HOST:PORT, as it is announced to the run.

        Raises:
            OSError: the port is not available.
        """
        if self.listener is None:
            self.listener = bind(self.address, port)
            self.listener.setblocking(False)
            self.host_port = f"{self.name}:{self.listener.getsockname()[1]}"
            self._accept_or_not()
        return self.host_port

    def offer(self, service: str, target: Target) -> None:
        """Set the server of a service, and connect the guests that wait for it."""
        if (old := self.targets.get(service)) is not None:
            old.close()
        self.targets[service] = target
        for guest in [guest for guest in self.guests if guest.wants == service]:
            guest.go(target)

    def withdraw(self, service: str) -> None:
        """Remove a service. Existing connections stay."""
        if (old := self.targets.pop(service, None)) is not None:
            old.close()

    def tend(self) -> float:
        """Run due timers. Return the seconds until the next one."""
        now, waits = self.clock(), [3600.0]
        for guest in [guest for guest in self.guests if guest.until is not None]:
            assert guest.until is not None
            if now >= guest.until:
                guest.late()
                continue
            if guest.wants is not None and (target := self.targets.get(guest.wants)) is not None:
                guest.go(target)
                waits.append(BUSY_S if guest.wants else 3600.0)
            waits.append(guest.until - now)
        self._accept_or_not()
        if self.listener is not None and not self.accepting:
            waits.append(max(0.01, self.next_accept - now))
        return max(0.0, min(waits))

    def close(self) -> None:
        """Close all connections and the port."""
        for guest in list(self.guests):
            guest.close()
        for target in self.targets.values():
            target.close()
        if self.listener is not None:
            if self.accepting:
                self.selector.unregister(self.listener)
            self.listener.close()
            self.listener, self.accepting = None, False

    def _accept_or_not(self) -> None:
        if self.listener is None:
            return
        room = len(self.guests) < MOST_GUESTS and self.clock() >= self.next_accept
        if room and not self.accepting:
            self.selector.register(self.listener, _READ, self._accept)
        elif self.accepting and not room:
            self.selector.unregister(self.listener)
        self.accepting = room

    def _accept(self, _events: int) -> None:
        assert self.listener is not None
        come, rest_s = accept_some(self.listener)
        self.next_accept = self.clock() + rest_s
        for near, peer in come:
            self._make_room()
            guest = _Guest(self, near, str(peer[0]))
            self.guests[guest] = None
            guest.begin()
        self._accept_or_not()

    def _make_room(self) -> None:
        strangers = [guest for guest in self.guests if guest.is_stranger]
        if len(strangers) < MOST_STRANGERS:
            return
        hosts = [guest.peer for guest in strangers]
        oldest = strangers[crowded_out(hosts)]
        count = hosts.count(oldest.peer)
        self.refusals.tell("flood", f"{count} connections from {oldest.peer} at a time that do not prove themselves")
        oldest.close()


class _Guest:
    """One connection. It completes the handshake, waits for its server, and is then spliced to it."""

    def __init__(self, gate: Gate, near: socket.socket, peer: str) -> None:
        self.gate = gate
        self.near = near
        self.peer = peer
        self.far: socket.socket | None = None
        self.target: Listening | None = None  # as long as it is being connected to
        self.splice: Splice | None = None
        self.said, self.heard = handshake.challenge(), b""
        self.is_stranger = True
        self.wants: str | None = None  # the service it waits for
        self.until: float | None = gate.clock() + PROVE_WITHIN_S
        self.closed = False
        self.masks: dict[socket.socket, int] = {}

    def begin(self) -> None:
        """Send the challenge."""
        try:
            self.near.setblocking(False)
            self.near.send(self.said)  # the first hundred bytes of a connection always fit
        except OSError:
            self.close()
            return
        listen(self.gate.selector, self.masks, self.near, _READ, self._prove)

    def _prove(self, _events: int) -> None:
        """Read the answer, and not a byte beyond it: the rest is for the server."""
        if self.closed:
            return
        try:
            data = self.near.recv(handshake.ANSWER - len(self.heard))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self.heard:
                self._refuse("hung up before it had proved that it is of this run")
            self.close()
            return
        self.heard += data
        if len(self.heard) < handshake.ANSWER:
            return
        key = self.gate.key()
        admitted = handshake.admit(key, self.said, self.heard, self.gate.host_port) if key else None
        if admitted is None:
            self._refuse("could not prove that it is of this run")
            self.close()
            return
        try:
            self.near.send(admitted.proof)
        except OSError:
            self.close()
            return
        listen(self.gate.selector, self.masks, self.near, 0, self._prove)
        self.is_stranger, self.wants = False, admitted.service
        self.until = self.gate.clock() + OFFERED_WITHIN_S
        if (target := self.gate.targets.get(admitted.service)) is not None:
            self.go(target)

    def go(self, target: Target) -> None:
        """Connect to the server, or give it the connection."""
        wanted, self.wants = self.wants, None
        try:
            if isinstance(target, TakesOver):
                target.give(self.near)
                self.close()  # our copy
                return
            self.far = target.dial()
        except BlockingIOError:
            self.wants = wanted  # `tend` tries again, until its time is over
            return
        except OSError:
            self.close()  # the client dials again
            return
        self.target = target
        self.until = self.gate.clock() + OFFERED_WITHIN_S
        listen(self.gate.selector, self.masks, self.far, _WRITE, self._connected)

    def _connected(self, _events: int) -> None:
        if self.closed or self.far is None:
            return
        self._settle()
        if self.far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close()
            return
        self.until = None
        for end in (self.near, self.far):
            listen(self.gate.selector, self.masks, end, 0, self._connected)
        self.masks.clear()
        self.splice = Splice(self.gate.selector, self.near, self.far, self.close)

    def _settle(self) -> None:
        target, self.target = self.target, None
        if target is not None and self.far is not None:
            target.settled(self.far)

    def late(self) -> None:
        """Close the connection after its time limit."""
        if self.is_stranger:
            self._refuse(f"did not prove within {PROVE_WITHIN_S:g} s that it is of this run")
        self.close()

    def _refuse(self, why: str) -> None:
        words = f"a connection from {self.peer} to port {self.gate.host_port.rpartition(':')[2]}, which {why}"
        self.gate.refusals.tell("stranger", words)

    def close(self) -> None:
        """Close both ends."""
        if self.closed:
            return
        self.closed = True
        self.gate.guests.pop(self, None)
        if self.splice is not None:
            self.splice.close()
            return
        self._settle()
        for end in (self.near, self.far):
            if end is not None:
                if self.masks.pop(end, 0):
                    self.gate.selector.unregister(end)
                end.close()


def bind(address: str, port: int) -> socket.socket:
    """Return a listening socket at an address; "": on all interfaces.

    Raises:
        OSError: the port is not available.
    """
    kind = family(address)
    both = not address and kind == socket.AF_INET6
    return socket.create_server((address, port), family=kind, backlog=1024, dualstack_ipv6=both)
