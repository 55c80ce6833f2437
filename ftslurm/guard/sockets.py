"""Socket functions shared by the gate and the proxies of a guard, for one event loop that nothing may block.

`accept_some` accepts new connections, `Splice` joins two, `Resolver` looks up names, `Refusals` reports refused
connections, and `crowded_out` selects the unproven connection to close when there are too many. The owner of the
selector calls `key.data(events)` for ready sockets.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence

AT_ONCE = 32  # connections accepted in one call: a flood must not keep a guard from its other work
REST_S = 0.5  # pause when there are no file descriptors or no memory, instead of a busy loop
CHUNK = 65536  # bytes held in each direction; beyond it the sender has to wait
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Arrival = tuple[socket.socket, tuple[str, int]]  # a connection, and its client's address
Resolved = tuple[int, tuple[str, int]]  # the family of an address, and the argument of connect()


def accept_some(listener: socket.socket, most: int = AT_ONCE) -> tuple[list[Arrival], float]:
    """Accept at most `most` and AT_ONCE connections. Return them, and the seconds to wait before the next call."""
    taken: list[Arrival] = []
    while len(taken) < min(AT_ONCE, most):
        try:
            taken.append(listener.accept())
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.ECONNABORTED:
                return taken, REST_S
    return taken, 0.0


def crowded_out(hosts: Sequence[str]) -> int:
    """Return the index of the unproven connection to close for a new one: the oldest of the host with the most.

    So a flood pushes out its own connections. Other clients on the host of a flood have to be faster than it, which
    they are: a client answers the challenge as soon as it is connected, and dials again if it was pushed out.

    Args:
        hosts: the hosts of the unproven connections, oldest first.
    """
    most, _ = Counter(hosts).most_common(1)[0]
    return hosts.index(most)


def raise_file_limit() -> None:
    """Raise this process's limit of file descriptors as far as it may, at most to 65536: one for each connection."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))


class Refusals:
    """Reports refusals to the step's log, only the first of each kind: a stranger must not fill the log."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.warn: Callable[[str], object] = lambda _: None  # is told what the user has to know

    def tell(self, kind: str, words: str) -> None:
        """Report a refusal, if it is the first of its kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            with contextlib.suppress(OSError):
                os.write(2, f"ftslurm: refused: {words} (more of the kind are not told)\n".encode())


class _Way:
    """One direction of a splice."""

    def __init__(self, pending: bytes = b"") -> None:
        self.pending = pending  # read and not yet written
        self.ended = False  # the source has hung up
        self.told = False  # the target has been shut down for writing


class Splice:
    """Joins two connected, non-blocking sockets until both have hung up. They must not be registered elsewhere.

    Args:
        selector: its owner calls `key.data(events)` for ready sockets.
        held: bytes already read from `near`.
        over: called once, when both are closed.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        near: socket.socket,
        far: socket.socket,
        over: Callable[[], object],
        held: bytes = b"",
    ) -> None:
        self.selector = selector
        self.near, self.far = near, far
        self.over = over
        self.there, self.back = _Way(held), _Way()
        self.closed = False
        self.has_carried = bool(held)  # whether near has sent anything
        self.masks: dict[socket.socket, int] = {}
        for end in (near, far):
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._run(there=True, back=True)

    def _near_ready(self, events: int) -> None:
        self._run(there=bool(events & _READ), back=bool(events & _WRITE))

    def _far_ready(self, events: int) -> None:
        self._run(there=bool(events & _WRITE), back=bool(events & _READ))

    def _run(self, *, there: bool, back: bool) -> None:
        """Copy in the given directions as far as possible without blocking."""
        if self.closed:
            return
        try:
            if there:
                self.has_carried |= _move(self.near, self.far, self.there)
            if back:
                _move(self.far, self.near, self.back)
        except OSError:  # reset by one side: closing shows it to the other
            self.close()
        if self.there.told and self.back.told:
            self.close()
        if not self.closed:
            self._listen()

    def close(self) -> None:
        """Close both ends; bytes already written to either still arrive."""
        if self.closed:
            return
        self.closed = True
        for end in (self.near, self.far):
            if self.masks.pop(end, 0):
                self.selector.unregister(end)
            end.close()
        self.over()

    def _listen(self) -> None:
        """Register the awaited events with the selector."""
        there, back = self.there, self.back
        near = (_READ if not there.pending and not there.ended else 0) | (_WRITE if back.pending else 0)
        far = (_READ if not back.pending and not back.ended else 0) | (_WRITE if there.pending else 0)
        listen(self.selector, self.masks, self.near, near, self._near_ready)
        listen(self.selector, self.masks, self.far, far, self._far_ready)


def listen(
    selector: selectors.BaseSelector,
    masks: dict[socket.socket, int],
    end: socket.socket,
    mask: int,
    call: Callable[[int], None],
) -> None:
    """Register `call` for these events of a socket; 0: unregister it. `masks` holds the current registrations."""
    old = masks.get(end, 0)
    if mask == old:
        return
    masks[end] = mask
    if not mask:
        selector.unregister(end)
    elif old:
        selector.modify(end, mask, call)
    else:
        selector.register(end, mask, call)


def _move(source: socket.socket, target: socket.socket, way: _Way) -> bool:
    """Write pending bytes; read more only when none are pending. Return whether anything was read.

    Raises:
        OSError: one of the two connections is broken.
    """
    data = b""
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
    return bool(data)


class Resolver:
    """Looks up the name of a machine, one at a time, in a thread: a name service may take a minute.

    Names are looked up by the machine that connects. A numeric address announced by the other machine would be wrong
    where its own name resolves to 127.0.1.1, or where it has several networks.

    Args:
        selector: the selector of the event loop.
        found: called with the addresses that were found.
    """

    def __init__(self, selector: selectors.BaseSelector, found: Callable[[list[Resolved]], object]) -> None:
        self.selector = selector
        self.found = found
        self.answer: socket.socket | None = None  # receives the thread's answer

    def look_up(self, host: str, port: int) -> list[Resolved]:
        """Return the addresses if no name service is needed, else an empty list: `found` gets them later, if any."""
        try:
            return look_up(host, port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass
        if self.answer is None:
            with contextlib.suppress(OSError, RuntimeError):  # no descriptor or thread available: the caller retries
                ours, theirs = socket.socketpair()
                threading.Thread(target=_look_up_aside, args=(theirs, host, port), daemon=True).start()
                self.answer = ours
                self.selector.register(ours, _READ, self._answered)
        return []

    def _answered(self, _events: int) -> None:
        assert self.answer is not None
        data = self.answer.recv(65536)
        self.forget()
        if data:
            self.found([(int(family), (str(host), int(port))) for family, (host, port) in json.loads(data)])

    def forget(self) -> None:
        """Drop the awaited answer."""
        if self.answer is not None:
            self.selector.unregister(self.answer)
            self.answer.close()
            self.answer = None


def _look_up_aside(answer: socket.socket, host: str, port: int) -> None:
    with answer, contextlib.suppress(OSError, UnicodeError):  # no such name, or the answer is no longer wanted
        answer.send(json.dumps(look_up(host, port)[:16]).encode())


def look_up(host: str, port: int, flags: int = 0) -> list[Resolved]:
    """Return all addresses of a host.

    Raises:
        OSError: it has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(int(family), (str(where[0]), port)) for family, _, _, _, where in found]
