"""A door to the Lighthouse, or to a parameter server, that stays where it is while that moves.

A manager learns the Lighthouse's address once, and has no way to be told another. So the guard of every worker listens
on this machine's loopback, hands that address out in the Lighthouse's stead, and passes bytes on to wherever the
Lighthouse is. While it is nowhere, connections are held and the Lighthouse is dialled every few milliseconds: managers
do not notice that it is away, whereas one that dials in vain waits ever longer, up to 10 s (T: src/retry.rs). In the
same way a parameter server's clients find it where it always was, when it is brought back elsewhere.

It lives in the guard's own loop: no thread, nothing that blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

MOST = 128  # connections at a time; who comes later waits in the kernel's queue. A manager has two
CHUNK = 65536  # bytes that are held in each direction of a connection; beyond it the sender has to wait
DIAL_FOR_S = 2.0  # an address that neither takes nor refuses a connection for this long is dialled anew
RESOLVE_AGAIN_S = 0.5
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Address = tuple[int, tuple[str, int]]  # the family, and what connect() takes


class Forwarder:
    """Listens on loopback. Whoever owns the selector calls `key.data(events)` for what is ready, and `tend`."""

    def __init__(self, selector: selectors.BaseSelector, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Listen, and go to a first address.

        Raises:
            OSError: no port can be had.
        """
        self.selector = selector
        self.clock = clock
        self.links: dict[_Link, None] = {}  # oldest first
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=MOST)
        self.listener.setblocking(False)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.target = ""
        self.addresses: list[Address] = []
        self.turn = 0  # which of the addresses is dialled
        self.away_since: float | None = None  # since when nobody has taken a connection there
        self.next_dial = self.next_resolve = self.next_accept = 0.0
        self.resolver: tuple[int, int] | None = None  # the process that asks the name service, and its pipe
        self.accepting = False
        self.go_to(url)
        self._accept_if_there_is_room()

    def go_to(self, url: str) -> None:
        """From now on it is there; "": nowhere. Connections to where it was are closed; managers dial again."""
        if url == self.target:
            self.next_dial = 0.0
            return
        self.target = url
        for link in [link for link in self.links if link.far is not None]:
            if link.through:
                link.close()
            else:
                link.hang_up()
        self.addresses, self.turn, self.away_since = [], 0, None
        self.next_dial = self.next_resolve = 0.0
        self._forget_resolver()
        self.tend()

    def tend(self) -> float:
        """Do what is due; returns after how many seconds something else is."""
        now = self.clock()
        waits = [3600.0]
        self._accept_if_there_is_room()
        if not self.accepting and len(self.links) < MOST:
            waits.append(self.next_accept - now)
        if self.target and not self.addresses:
            if self.resolver is None and now >= self.next_resolve:
                self.next_resolve = now + RESOLVE_AGAIN_S
                self._resolve()
            waits.append(self.next_resolve - now)
        for link in [link for link in self.links if link.dialled is not None]:
            assert link.dialled is not None
            if now >= link.dialled + DIAL_FOR_S:
                self.failed(link, link.address)
            else:
                waits.append(link.dialled + DIAL_FOR_S - now)
        if self.addresses:
            waits.append(self._dial_for_those_who_wait(now))
        return max(0.0, min(waits))

    def _dial_for_those_who_wait(self, now: float) -> float:
        """While the Lighthouse is away, one dial at a time is for all; returns in how many seconds the next is due."""
        for link in [link for link in self.links if link.far is None]:
            if self.away_since is not None and any(other.dialled is not None for other in self.links):
                break
            if self.away_since is not None and now < self.next_dial:
                return self.next_dial - now
            link.dial(self.addresses[self.turn % len(self.addresses)], now)
        return 3600.0

    def failed(self, link: _Link, address: Address) -> None:
        """Nobody takes this connection; another address, if there is one, is tried soon."""
        now = self.clock()
        link.hang_up()
        if address == self.addresses[self.turn % len(self.addresses)]:
            self.turn += 1
        if self.away_since is None:
            self.away_since = now
        self.next_dial = now + min(max(0.025, (now - self.away_since) / 40), 0.25)  # 2.5 % of the pause at the most

    def reached(self) -> None:
        """The Lighthouse has taken a connection."""
        if self.away_since is not None:
            self.away_since = None
            self.tend()

    def close(self) -> None:
        """End it all."""
        for link in list(self.links):
            link.close()
        self._forget_resolver()
        if self.accepting:
            self.selector.unregister(self.listener)
        self.listener.close()

    # --- who comes -------------------------------------------------------------------------------------------------

    def _accept_if_there_is_room(self) -> None:
        if len(self.links) >= MOST:  # one that has hung up, and whose other end has not noticed, makes room
            next((link.close for link in self.links if link.there.ended), lambda: None)()
        room = len(self.links) < MOST and self.clock() >= self.next_accept
        if room and not self.accepting:
            self.selector.register(self.listener, _READ, self._accept)
        elif self.accepting and not room:
            self.selector.unregister(self.listener)
        self.accepting = room

    def _accept(self, _events: int) -> None:
        while len(self.links) < MOST:
            try:
                near, _ = self.listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ECONNABORTED:
                    self.next_accept = self.clock() + 0.5  # no file descriptors, no memory: not in a busy loop
                    break
                continue
            self.links[_Link(self, near)] = None
        self.tend()

    # --- where to --------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Turn the address into numbers; a name is looked up by a child, for a name service may take its time."""
        parts = urlsplit(self.target)
        try:
            host, port = parts.hostname or "", parts.port or 80
            self.addresses = _look_up(host, port, socket.AI_NUMERICHOST)
            return
        except (OSError, ValueError):
            pass
        try:
            out, into = os.pipe()
            pid = os.fork()
        except OSError:
            return  # it is tried again
        if pid == 0:
            with contextlib.suppress(BaseException):  # none of the guard's connections may live on in here
                os.closerange(0, into)
                os.closerange(into + 1, into + 4096)
                os.write(into, json.dumps(_look_up(parts.hostname or "", parts.port or 80)[:16]).encode())
            os._exit(0)
        os.close(into)
        self.resolver = (pid, out)
        self.selector.register(out, _READ, self._resolved)

    def _resolved(self, _events: int) -> None:
        assert self.resolver is not None
        data = os.read(self.resolver[1], CHUNK)
        self._forget_resolver()
        with contextlib.suppress(ValueError):  # nothing was found
            self.addresses = [(int(family), (str(host), int(port))) for family, (host, port) in json.loads(data)]
        self.tend()

    def _forget_resolver(self) -> None:
        if self.resolver is not None:
            pid, out = self.resolver
            self.resolver = None
            self.selector.unregister(out)
            os.close(out)
            with contextlib.suppress(ChildProcessError):  # the guard has reaped it
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _look_up(host: str, port: int, flags: int = 0) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(int(family), (str(where[0]), port)) for family, _, _, _, where in found]


class _Way:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.pending = b""  # read and not yet written
        self.ended = False  # its source has said all
        self.told = False  # and its target knows


class _Link:
    """A manager's connection (near) and, once somebody takes it, the one to the Lighthouse (far)."""

    def __init__(self, door: Forwarder, near: socket.socket) -> None:
        self.door = door
        self.near = near
        self.far: socket.socket | None = None
        self.there, self.back = _Way(), _Way()
        self.address: Address = (0, ("", 0))  # that far was last connected to
        self.dialled: float | None = None  # when, if it is being connected
        self.closed = False
        self.masks: dict[socket.socket, int] = {}
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listen()

    @property
    def through(self) -> bool:
        """Whether both ends are connected."""
        return self.far is not None and self.dialled is None

    def dial(self, address: Address, now: float) -> None:
        """Begin to connect to the Lighthouse."""
        self.address, self.dialled = address, now
        try:
            self.far = socket.socket(address[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self.far.connect_ex(address[1])
            mine = self.far.getsockname()[:2]
        except OSError as error:
            code = error.errno or errno.EIO
        # On one machine a port that nobody listens on can be connected to itself, and nobody could then have it.
        if code not in (0, errno.EINPROGRESS) or mine == address[1]:
            self.door.failed(self, address)
        else:
            self._listen()

    def hang_up(self) -> None:
        """The far end is no good; the near one is held."""
        if self.far is not None:
            self._forget(self.far)
        self.far = self.dialled = None
        if not self.closed:
            self._listen()

    def close(self) -> None:
        """End both; what has been written to either still arrives."""
        if not self.closed:
            self.closed = True
            del self.door.links[self]
            self._forget(self.near)
            self.hang_up()

    def _forget(self, end: socket.socket) -> None:
        if self.masks.pop(end, 0):
            self.door.selector.unregister(end)
        end.close()

    def _near_ready(self, _events: int) -> None:
        self._run()

    def _far_ready(self, _events: int) -> None:
        if self.closed or self.far is None:
            return
        if self.dialled is not None:
            if self.far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.door.failed(self, self.address)
                self.door.tend()
                return
            self.dialled = None
            self.door.reached()
        self._run()

    def _run(self) -> None:
        """Move what can be moved."""
        if self.closed:
            return
        try:
            if self.far is None or self.dialled is not None:
                self._hold()
            else:
                _move(self.near, self.far, self.there)
                _move(self.far, self.near, self.back)
        except OSError:  # reset by either side: the other will see it hang up
            self.close()
        if self.there.told and self.back.told:
            self.close()
        if not self.closed:
            self._listen()

    def _hold(self) -> None:
        """Nobody there yet. Whoever hangs up meanwhile has given up: HTTP/2 knows no half-closed connections."""
        room = CHUNK - len(self.there.pending)
        if room > 0:
            with contextlib.suppress(BlockingIOError):
                data = self.near.recv(room)
                self.there.pending += data
                if not data:
                    self.close()

    def _listen(self) -> None:
        """Tell the selector what we wait for."""
        there, back = self.there, self.back
        room = not there.pending if self.through else len(there.pending) < CHUNK
        near = (_READ if room and not there.ended else 0) | (_WRITE if back.pending else 0)
        self._wait_for(self.near, near, self._near_ready)
        if self.far is not None:
            far = (_READ if not back.pending and not back.ended else 0) | (_WRITE if there.pending else 0)
            self._wait_for(self.far, far if self.dialled is None else _WRITE, self._far_ready)

    def _wait_for(self, end: socket.socket, mask: int, call: Callable[[int], None]) -> None:
        old = self.masks.get(end, 0)
        if mask == old:
            return
        self.masks[end] = mask
        if not mask:
            self.door.selector.unregister(end)
        elif old:
            self.door.selector.modify(end, mask, call)
        else:
            self.door.selector.register(end, mask, call)


def _move(source: socket.socket, target: socket.socket, way: _Way) -> None:
    """Write what is pending; read more only when nothing is.

    Raises:
        OSError: one of the two is broken.
    """
    with contextlib.suppress(BlockingIOError):
        if way.pending:
            way.pending = way.pending[target.send(way.pending) :]
        if not way.pending and not way.ended:
            data = source.recv(CHUNK)
            way.ended = not data
            way.pending = data
            if data:
                way.pending = data[target.send(data) :]
    if way.ended and not way.pending and not way.told:
        way.told = True
        target.shutdown(socket.SHUT_WR)
