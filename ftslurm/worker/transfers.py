"""The connections over which this process gives or gets a state, and which of them stand still.

When the node of a group vanishes while it heals, or while another group heals from it, no connection closes: the other
end waits for torchft's time-out of 60 s, and the other groups wait for it. The kernel counts the bytes that have
arrived at either end. A connection whose counters do not move is shut down, once the quorum is known to be broken.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from contextlib import suppress
from weakref import WeakKeyDictionary

# A connection that has moved nothing for so long stands still. One whose sender copies the state from its GPU does,
# too: if a member of the quorum is gone just then, it ends, and the heal is repeated with the next quorum.
STILL_S = 3.0
_COUNTERS = struct.Struct("=QQ")  # of struct tcp_info (linux/tcp.h): bytes acknowledged by the peer, bytes received
_COUNTERS_AT = 120


class Transfers:
    """The open connections of this process to other groups' checkpoint servers, and to its own server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: WeakKeyDictionary[socket.socket, tuple[bytes, float]] = WeakKeyDictionary()

    def add(self, connection: socket.socket) -> None:
        """Watch a connection until it is closed."""
        with self._lock:
            self._seen[connection] = (b"", time.monotonic())

    def has_ended(self, connection: socket.socket) -> bool:
        """Return whether a connection was shut down here."""
        with self._lock:
            return connection not in self._seen

    def hang_up_still(self, still_s: float = STILL_S) -> int:
        """Shut down the connections that have moved no byte since an earlier call, `still_s` ago or before.

        Returns:
            How many there were.
        """
        now, still = time.monotonic(), list[socket.socket]()
        with self._lock:
            for connection, (before, since) in list(self._seen.items()):
                counters = _moved(connection)
                if counters is None:
                    continue
                if counters != before:
                    self._seen[connection] = (counters, now)
                elif now >= since + still_s:
                    still.append(connection)
                    del self._seen[connection]
        for connection in still:
            with suppress(OSError):  # closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)
        return len(still)


def _moved(connection: socket.socket) -> bytes | None:
    """Return a connection's counters; None: it is closed, has bytes that nobody has read yet, or is not counted."""
    try:
        unread = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))[0]
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS_AT + _COUNTERS.size)
    except (OSError, ValueError):  # ValueError: fileno() is -1
        return None
    return None if unread else info[_COUNTERS_AT : _COUNTERS_AT + _COUNTERS.size] or None
