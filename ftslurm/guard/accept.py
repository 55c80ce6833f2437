"""Who has come to a listening socket: taken some at a time, so that a flood never keeps a guard from its other work."""

from __future__ import annotations

import errno
import socket

AT_ONCE = 32  # are taken before anything else is looked at
REST_S = 0.5  # when there are no file descriptors, no memory: not in a busy loop

Arrival = tuple[socket.socket, tuple[str, int]]  # a connection, and where it comes from


def take(listener: socket.socket, most: int) -> tuple[list[Arrival], float]:
    """Those who have come, `most` or AT_ONCE of them, and for how many seconds no more can be taken."""
    come: list[Arrival] = []
    while len(come) < min(AT_ONCE, most):
        try:
            come.append(listener.accept())
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.ECONNABORTED:
                return come, REST_S
    return come, 0.0
