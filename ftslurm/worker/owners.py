"""Whose is the other end of a connection on this machine's loopback? From /proc/net/tcp and tcp6 (proc(5))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress

Address = tuple[str, int]

_ESTABLISHED = b"01"


TRIES = 3  # a table that changes while it is read may lack a row (seq_file goes on by position)


def uids_of_clients(clients: Sequence[Address], server: Address) -> list[int | None]:
    """For each connection the user whose socket is the client's end; None: it is closed, or that is not known.

    However many there are, the tables are read once, or TRIES times if one cannot be found.

    Args:
        clients, server: the IPv4 address and port of each end, as getpeername() and getsockname() of the server's say.
    """
    found: dict[Address, int] = {}
    for _ in range(TRIES):
        missing = {_hex(client): client for client in clients if client not in found}
        if not missing:
            break
        for line in _lines(_hex(server)):
            row = _Row(line)
            client = missing.get(row.here)
            if client is not None and row.there == _hex(server) and row.is_held:
                found[client] = row.uid
    return [found.get(client) for client in clients]


def clients_of(port: int) -> Iterator[tuple[Address, int]]:
    """(address, uid) of every client on this machine that is connected to a port of its loopback."""
    there = _hex(("127.0.0.1", port))
    for line in _lines(there):
        row = _Row(line)
        if row.there == there and row.state == _ESTABLISHED:
            yield (_address(row.here), row.uid if row.inode else -1)


class _Row:
    def __init__(self, line: bytes) -> None:
        words = line.split()
        self.here, self.there, self.state = words[1][-13:], words[2][-13:], words[3]
        self.uid, self.inode = int(words[7]), int(words[9])

    @property
    def is_held(self) -> bool:
        """Whether it is a connection and somebody has it. Without an inode nobody has any more."""
        return self.state == _ESTABLISHED and self.inode != 0


def _lines(address: bytes) -> Iterator[bytes]:
    """The rows with an address. IPv6 sockets' end in the same eight digits, after those that say they speak IPv4."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{name}", "rb") as table:
            text, at = table.read(), -1
            while (at := text.find(address, at + 1)) >= 0:
                yield text[text.rfind(b"\n", 0, at) + 1 : text.find(b"\n", at)]


def _hex(address: Address) -> bytes:
    number = struct.unpack("=I", socket.inet_aton(address[0]))[0]
    return b"%08X:%04X" % (number, address[1])


def _address(text: bytes) -> Address:
    number, port = text.split(b":")
    return socket.inet_ntoa(struct.pack("=I", int(number, 16))), int(port, 16)
