"""Wait until a descriptor can be read or written. select.select refuses descriptors above 1023."""

from __future__ import annotations

import select


def readable(fd: int, seconds: float = 0.0) -> bool:
    """Return whether a read does not block, within so many seconds; also at the end of the file."""
    return _ready(fd, select.POLLIN, seconds)


def writable(fd: int, seconds: float = 0.0) -> bool:
    """Return whether a write does not block, within so many seconds; also if nobody reads any more."""
    return _ready(fd, select.POLLOUT, seconds)


def _ready(fd: int, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(1000 * max(0.0, seconds)))
