"""Finds the user who owns the other end of a connection on this machine's loopback.

/proc/net/tcp and tcp6 say it (proc(5)): some milliseconds where they are large, once for each connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

Address = tuple[str, int]

_OPEN = (b"01", b"04", b"05")  # established; or it sends no more, but still receives: FIN_WAIT1, FIN_WAIT2
TRIES = 3  # a table that changes while it is read may lack a row (seq_file goes on by position)


def uid_of_client(client: Address, server: Address) -> int | None:
    """Return the user of the client's end of a connection; None: it is closed, or the user is not known.

    Args:
        client, server: the IPv4 address and port of each end, as getpeername() and getsockname() of the server's say.
    """
    for _ in range(TRIES):
        uid = dict(clients_of(server[1])).get(client)
        if uid is not None:
            return uid if uid >= 0 else None
    return None


def clients_of(port: int) -> Iterator[tuple[Address, int]]:
    """Yield (address, uid) of every client on this machine that is connected to a port of its loopback.

    The uid is -1 if the client's process has closed its end.
    """
    there = b"%08X:%04X" % (struct.unpack("=I", socket.inet_aton("127.0.0.1"))[0], port)
    for line in _lines(there):
        words = line.split()
        if words[2].endswith(there) and words[3] in _OPEN:
            host, theirs = words[1][-13:].split(b":")
            client = socket.inet_ntoa(struct.pack("=I", int(host, 16))), int(theirs, 16)
            yield client, int(words[7]) if int(words[9]) else -1


def _lines(address: bytes) -> Iterator[bytes]:
    """Yield the rows with an address. An IPv4 address in tcp6 ends in the same eight digits."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{name}", "rb") as table:
            yield from (line for line in table if address in line)
