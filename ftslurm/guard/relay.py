"""Two connections made one: what comes in at either goes out at the other. In its owner's loop, nothing blocks."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

CHUNK = 65536  # bytes that are held in each direction; beyond it the sender has to wait
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Way:
    """One direction."""

    def __init__(self, pending: bytes = b"") -> None:
        self.pending = pending  # read and not yet written
        self.ended = False  # its source has said all
        self.told = False  # and its target knows


class Splice:
    """Joins two connected, non-blocking sockets that nobody else has registered, until both have hung up.

    Args:
        selector: its owner calls `key.data(events)` for what is ready.
        held: what has been read of `near` already.
        over: called once, when both have been closed.
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
        self.has_carried = bool(held)  # anything from near to far
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
        """Move what can be moved."""
        if self.closed:
            return
        try:
            if there:
                self.has_carried |= _move(self.near, self.far, self.there)
            if back:
                _move(self.far, self.near, self.back)
        except OSError:  # reset by either side: the other will see it hang up
            self.close()
        if self.there.told and self.back.told:
            self.close()
        if not self.closed:
            self._listen()

    def close(self) -> None:
        """End both; what has been written to either still arrives."""
        if self.closed:
            return
        self.closed = True
        for end in (self.near, self.far):
            if self.masks.pop(end, 0):
                self.selector.unregister(end)
            end.close()
        self.over()

    def _listen(self) -> None:
        """Tell the selector what we wait for."""
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
    """Wait for these events of a socket, 0: for none; `masks` holds what is waited for by now."""
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
    """Write what is pending; read more only when nothing is. Returns whether anything was read.

    Raises:
        OSError: one of the two is broken.
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
