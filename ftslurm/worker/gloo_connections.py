"""Finds the connections of a Gloo process group, to hang them up when a member of it is gone.

torch does not name them. But the kernel says what each epoll set watches (/proc/PID/fdinfo), and each Gloo device makes
one of its own, for the socket at which it listens and for its connections. What other threads open meanwhile, such as
the upload of a checkpoint or a streaming data set, is in another set or in none.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from ftslurm.guard.gateway import copy_of

# Epoll sets by descriptor, each with descriptor and inode of what it watches. Descriptors are reused, inodes are not: a
# set is the same as long as it watches something that it did.
Loops = dict[int, set[tuple[str, str]]]


def loops() -> Loops:
    """Return all epoll sets of this process."""
    found: Loops = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]":
                text = Path(f"/proc/self/fdinfo/{fd}").read_text()
                found[int(fd)] = set(re.findall(r"tfd: *(\d+) .* ino:(\w+)", text))
    return found


def made_since(before: Loops) -> Loops:
    """Return the sets that were not there before and in which a socket listens."""
    return {
        fd: watched
        for fd, watched in loops().items()
        if watched.isdisjoint(before.get(fd, ())) and any(_listens(int(number)) for number, _ in watched)
    }


def hang_up(made: Loops) -> None:
    """Shut down the connections that the sets watch now, as if their peers had closed them."""
    now = loops()
    for fd, watched in made.items():
        for number, _ in now.get(fd, set()) if watched & now.get(fd, set()) else ():
            with suppress(OSError), copy_of(int(number)) as connection:
                connection.getpeername()  # raises if it has none
                connection.shutdown(socket.SHUT_RDWR)


def _listens(number: int) -> bool:
    with suppress(OSError), copy_of(number) as sock:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False
