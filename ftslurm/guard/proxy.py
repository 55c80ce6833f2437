"""A proxy on loopback with a fixed address, for a Lighthouse, parameter server, store or manager that may move.

torchft's manager is given the Lighthouse's address once. So it gets the address of a proxy in its guard, which forwards
the bytes to the Lighthouse's current address. While the Lighthouse is down, the proxy holds connections and dials every
few milliseconds; a manager itself would wait longer after each failure, up to 10 s (T: src/retry.rs). The clients of a
parameter server use a proxy in the same way.

The proxy serves only processes of this user (/proc/net/tcp names the owner of a connection). It and a server of the run
prove to each other that they have the run's key (security/handshake.py) before it forwards a byte.

The proxy runs in the event loop of the guard: nothing may block.
"""

from __future__ import annotations

import errno
import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable

from ftslurm.guard.sockets import CHUNK, Refusals, Resolved, Resolver, Splice, accept_some, listen
from ftslurm.protocol import addresses
from ftslurm.security import handshake, socket_owners

MOST = 512  # simultaneous connections, a manager has two; more wait in the queue of the kernel
SILENT_FOR_S = 10.0  # after this time a client that has sent nothing is disconnected
DIAL_FOR_S = 2.0  # timeout of an attempt to connect; then the address is dialled again
DIAL_ONCE_FOR_S = 10.0  # the same for a server that does not move; then the connection is given up
RESOLVE_AGAIN_S = 0.5
TELL_S = 5.0  # a server that has not been reached for this long, while a client waits, is reported
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Proxy:
    """Listens on loopback. The owner of the selector calls `key.data(events)` for ready sockets, and `tend`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        key: Callable[[], bytes] = lambda: b"",
        refusals: Refusals | None = None,
        moves: bool = True,
    ) -> None:
        """Listen, and set the first address of the server.

        Args:
            url: the address of a server of this run (addresses.py), or of another one, which gets the bytes without a
                handshake.
            key: returns the run's key.
            moves: whether the server may come back, at this or another address: then connections are held while it is
                down, else they are closed.

        Raises:
            OSError: no port is available.
        """
        self.selector = selector
        self.clock = clock
        self.key = key
        self.refusals = refusals or Refusals()
        self.moves = moves
        self.links: dict[_Link, None] = {}  # oldest first
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=MOST)
        self.listener.setblocking(False)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.target = ""
        self.where: addresses.Address | None = None  # the target
        self.addresses: list[Resolved] = []
        self.turn = 0  # index of the address to dial
        self.away_since: float | None = None  # when the server was first unreachable; None: it is not
        self.known_since = 0.0  # since when it has this address
        self.is_settled = False  # the address has been reached, or reported
        self.problem = ""  # why the last attempt to connect has failed
        self.next_dial = self.next_resolve = self.next_accept = 0.0
        self.resolver = Resolver(selector, self._resolved)
        self.accepting = False
        self.go_to(url)
        self._accept_if_there_is_room()

    def go_to(self, url: str) -> None:
        """Set the address of the server; "": it has none now. Close connections to the old one; clients dial again."""
        if url == self.target:
            self.next_dial = 0.0
            return
        self.target, self.where = url, addresses.read(url)
        for link in [link for link in self.links if link.far is not None]:
            if link.through:
                link.close()
            else:
                link.hang_up()
        self.addresses, self.turn, self.away_since = [], 0, None
        self.known_since, self.is_settled, self.problem = self.clock(), False, ""
        self.next_dial = self.next_resolve = 0.0
        self.resolver.forget()
        self.tend()

    def tend(self) -> float:
        """Run due timers. Return the seconds until the next one."""
        now = self.clock()
        waits = [3600.0]
        self._accept_if_there_is_room()
        if not self.accepting and len(self.links) < MOST:
            waits.append(self.next_accept - now)
        if self.target and not self.addresses:
            if self.where is not None and now >= self.next_resolve:
                self.next_resolve = now + RESOLVE_AGAIN_S
                self.addresses = self.resolver.look_up(self.where.host, self.where.port)
            waits.append(self.next_resolve - now)
        for link in [link for link in self.links if not link.has_spoken]:
            if now >= link.since + SILENT_FOR_S:
                link.close()
            else:
                waits.append(link.since + SILENT_FOR_S - now)
        for link in [link for link in self.links if link.dialled is not None]:
            assert link.dialled is not None
            until = link.dialled + (DIAL_FOR_S if self.moves else DIAL_ONCE_FOR_S)
            if now >= until:
                self.failed(link, link.address, os.strerror(errno.ETIMEDOUT))
            else:
                waits.append(until - now)
        if self.addresses:
            waits.append(self._dial_for_those_who_wait(now))
        late = [max(link.since, self.known_since) + TELL_S for link in self.links if not link.through][:1]
        if late and self.target and not self.is_settled:
            if now >= late[0]:
                self.is_settled = True
                why = "no answer" if self.addresses else "this node knows no address of that name"
                self.refusals.warn(
                    f"cannot reach {self.target} ({self.problem or why}): name a network that all nodes share in "
                    f"cluster.interface=, and see that no firewall closes its ports"
                )
            waits += late
        return max(0.0, min(waits))

    def _dial_for_those_who_wait(self, now: float) -> float:
        """Dial for waiting connections, one at a time while the server is down. Return the seconds until the next."""
        for link in [link for link in self.links if link.far is None]:
            if self.moves and self.away_since is not None and any(other.dialled is not None for other in self.links):
                break
            if self.moves and self.away_since is not None and now < self.next_dial:
                return self.next_dial - now
            link.dial(self.addresses[self.turn % len(self.addresses)], now)
        return 3600.0

    def failed(self, link: _Link, address: Resolved, why: str) -> None:
        """Handle that an address does not accept connections; the next address is dialled soon."""
        now, self.problem = self.clock(), f"{address[1][0]}: {why}"
        link.hang_up()
        if not self.moves and link.tries >= len(self.addresses):
            link.close()
            return
        if address == self.addresses[self.turn % len(self.addresses)]:
            self.turn += 1
        if self.away_since is None:
            self.away_since = now
        self.next_dial = now + min(max(0.025, (now - self.away_since) / 40), 0.25)  # adds at most 2.5 % to the outage

    def _resolved(self, found: list[Resolved]) -> None:
        self.addresses = found
        self.tend()

    def reached(self) -> None:
        """Handle that the server has accepted a connection."""
        self.is_settled = True
        if self.away_since is not None:
            self.away_since = None
            self.tend()

    def close(self) -> None:
        """Close all connections and the port."""
        for link in list(self.links):
            link.close()
        self.resolver.forget()
        if self.accepting:
            self.selector.unregister(self.listener)
        self.listener.close()

    # --- new clients -----------------------------------------------------------------------------------------------

    def _accept_if_there_is_room(self) -> None:
        if len(self.links) >= MOST:  # close a link whose client has hung up, but whose server has not noticed
            next((link.close for link in self.links if link.has_hung_up), lambda: None)()
        room = len(self.links) < MOST and self.clock() >= self.next_accept
        if room and not self.accepting:
            self.selector.register(self.listener, _READ, self._accept)
        elif self.accepting and not room:
            self.selector.unregister(self.listener)
        self.accepting = room

    def _accept(self, _events: int) -> None:
        """Accept connections of this user, and close all others."""
        come, rest_s = accept_some(self.listener, MOST - len(self.links))
        self.next_accept = self.clock() + rest_s
        found = socket_owners.uids_of_clients([peer for _, peer in come], self.listener.getsockname())
        for (near, _), owner in zip(come, found, strict=True):
            if owner == os.getuid():
                self.links[_Link(self, near)] = None
                continue
            near.close()
            if owner is not None:  # None: the client has hung up
                words = f"a connection of user {owner} to this worker's way to {self.target or 'a server'}"
                self.refusals.tell("door", words)
        self.tend()


class _Link:
    """A client's connection (near) and the one to the server (far).

    near is held until far is connected and has completed the handshake. Then both are spliced.
    """

    def __init__(self, door: Proxy, near: socket.socket) -> None:
        self.door = door
        self.near = near
        self.since = door.clock()
        self.held = b""  # bytes of near that wait for far
        self.far: socket.socket | None = None
        self.splice: Splice | None = None
        self.tries = 0
        self.address: Resolved = (0, ("", 0))  # the last address that far was connected to
        self.dialled: float | None = None  # time of the attempt to connect; None: there is none
        self.heard, self.expected = b"", b""  # of the handshake: far's bytes so far, and the expected proof
        self.closed = False
        self.masks: dict[socket.socket, int] = {}
        near.setblocking(False)
        self._listen()

    @property
    def through(self) -> bool:
        """Return whether both ends are connected."""
        return self.splice is not None

    @property
    def has_spoken(self) -> bool:
        """Return whether near has sent anything."""
        return bool(self.held) or (self.splice is not None and self.splice.has_carried)

    @property
    def has_hung_up(self) -> bool:
        """Return whether near has hung up."""
        return self.splice is not None and self.splice.there.ended

    def dial(self, address: Resolved, now: float) -> None:
        """Begin to connect to the server."""
        self.address, self.dialled, self.heard, self.expected = address, now, b"", b""
        self.tries += 1
        try:
            self.far = socket.socket(address[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self.far.connect_ex(address[1])
            mine = self.far.getsockname()[:2]
        except OSError as error:
            code = error.errno or errno.EIO
        # On one machine a socket can connect to itself at a port without a listener; no server could then bind it.
        if code not in (0, errno.EINPROGRESS) or mine == address[1]:
            self.door.failed(self, address, os.strerror(code or errno.ECONNREFUSED))
        else:
            self._wait_for_far(_WRITE, self._connected)

    def hang_up(self) -> None:
        """Close far, and keep near."""
        if self.far is not None:
            self._forget(self.far)
        self.far = self.dialled = None

    def close(self) -> None:
        """Close both ends; bytes already written to either still arrive."""
        if self.closed:
            return
        self.closed = True
        del self.door.links[self]
        if self.splice is not None:
            self.splice.close()
        else:
            self._forget(self.near)
            self.hang_up()

    def _forget(self, end: socket.socket) -> None:
        if self.masks.pop(end, 0):
            self.door.selector.unregister(end)
        end.close()

    # --- near, while it is held ------------------------------------------------------------------------------------

    def _near_ready(self, _events: int) -> None:
        """Read while far is not connected. End-of-file closes the link: HTTP/2 has no half-closed connections."""
        if self.closed or self.splice is not None:
            return
        try:
            data = self.near.recv(CHUNK - len(self.held))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.held += data
        self._listen()

    def _listen(self) -> None:
        mask = _READ if len(self.held) < CHUNK else 0
        listen(self.door.selector, self.masks, self.near, mask, self._near_ready)

    # --- far, until its handshake is complete ----------------------------------------------------------------------

    def _wait_for_far(self, mask: int, call: Callable[[int], None]) -> None:
        assert self.far is not None
        listen(self.door.selector, self.masks, self.far, 0, call)
        listen(self.door.selector, self.masks, self.far, mask, call)

    def _connected(self, _events: int) -> None:
        if self.closed or self.far is None:
            return
        if code := self.far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(os.strerror(code))
        elif self.door.where is not None and self.door.where.service is not None:
            self._wait_for_far(_READ, self._prove)
        else:
            self._join()

    def _prove(self, _events: int) -> None:
        """Answer the server's challenge, then check its proof; see security/handshake.py."""
        if self.closed or self.far is None or self.door.where is None:
            return
        wanted = handshake.PROOF if self.expected else handshake.CHALLENGE
        try:
            data = self.far.recv(wanted - len(self.heard))
            if not data:
                raise ConnectionResetError
            self.heard += data
            if len(self.heard) < wanted:
                return
            said, self.heard = self.heard, b""
            if not self.expected:
                sent, self.expected = handshake.answer(self.door.key(), said, self.door.where.dialled)
                self.far.send(sent)  # the first hundred bytes of a connection always fit
                return
            if not hmac.compare_digest(said, self.expected):
                raise handshake.Refused(f"{self.door.where.dialled} is held by something that is not of this run")
        except BlockingIOError:
            return
        except OSError as error:
            if isinstance(error, handshake.Refused):
                self.door.refusals.tell("server", str(error))
            self._fail(error.strerror or str(error))
            return
        self._join()

    def _fail(self, why: str) -> None:
        self.door.failed(self, self.address, why)
        self.door.tend()

    def _join(self) -> None:
        """Splice both ends."""
        assert self.far is not None
        self.dialled = None
        for end in (self.near, self.far):
            listen(self.door.selector, self.masks, end, 0, self._near_ready)
        self.masks.clear()
        self.splice = Splice(self.door.selector, self.near, self.far, self.close, self.held)
        self.held = b""
        self.door.reached()
