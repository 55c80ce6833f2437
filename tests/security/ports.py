"""Finds the listening TCP ports of this network namespace, their processes, and their answers to a connection."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from own_network import ADDRESS

_LISTEN = "0A"  # a state in /proc/net/tcp


@dataclass(frozen=True)
class Listener:
    """One listening socket."""

    host: str  # in numbers; "::" and "0.0.0.0" are all addresses of this machine
    port: int
    inode: int

    def ways(self) -> tuple[tuple[socket.AddressFamily, str], ...]:
        """Return every kind of address under which a local process reaches it."""
        address = ipaddress.ip_address(self.host)
        plain = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")  # the same, seen in tcp6
        if address.is_unspecified:
            own = (socket.AF_INET6, "::1") if address.version == 6 else plain[0]
            return tuple(dict.fromkeys((*plain, own, (socket.AF_INET, ADDRESS))))
        if address.version == 6 and address.ipv4_mapped is None:
            return ((socket.AF_INET6, self.host),)
        return plain


@dataclass(frozen=True)
class Answer:
    """The result of one connection to one port."""

    port: int
    way: str
    opening: str  # the name of the bytes that were sent first
    connected: bool
    said: bytes  # received from the other side
    closed_s: float | None  # seconds from connecting until the other side closed; None: still open at the end

    def as_json(self) -> dict[str, object]:
        return vars(self) | {"said": self.said.hex()}

    @staticmethod
    def from_json(fields: dict[str, object]) -> Answer:
        return Answer(**fields | {"said": bytes.fromhex(str(fields["said"]))})  # type: ignore[arg-type]


def listeners() -> list[Listener]:
    """Return all listening sockets; any user may read that list."""
    found = []
    for name, size in (("tcp", 4), ("tcp6", 16)):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[n : n + 8])[::-1] for n in range(0, 2 * size, 8)]
                found.append(Listener(str(ipaddress.ip_address(b"".join(words))), int(port, 16), int(fields[9])))
    return found


def of_processes(pids: Iterable[int]) -> dict[int, int]:
    """Return port -> pid for the ports of these processes; needs the right to read their /proc."""
    by_inode = {f"socket:[{listener.inode}]": listener.port for listener in listeners()}
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    port = by_inode.get(os.readlink(f"/proc/{pid}/fd/{fd}"))
                    if port is not None:
                        found[port] = pid
    return found


def knock(listener: Listener, way: tuple[socket.AddressFamily, str], opening: str, say: bytes, stay_s: float) -> Answer:
    """Connect, send some bytes, and read until the other side closes or stay_s seconds have passed."""
    family, host = way
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(stay_s)
        try:
            sock.connect((host, listener.port))
        except OSError:
            return Answer(listener.port, host, opening, False, b"", None)
        begun, said, closed = time.monotonic(), b"", None
        with contextlib.suppress(OSError):
            sock.sendall(say)
        while closed is None and (left := begun + stay_s - time.monotonic()) > 0 and len(said) < 65536:
            if select.select([sock], [], [], left)[0]:
                try:
                    data = sock.recv(65536)
                except OSError:  # reset
                    data = b""
                said += data
                if not data:
                    closed = round(time.monotonic() - begun, 3)
        return Answer(listener.port, host, opening, True, said, closed)


def knock_everywhere(openings: dict[str, bytes], stay_s: float, only: Iterable[int] | None = None) -> list[Answer]:
    """Send every opening to every port by every address, all at once."""
    wanted = set(only) if only is not None else None
    with ThreadPoolExecutor(256) as pool:
        jobs = [
            pool.submit(knock, listener, way, name, say, stay_s)
            for listener in listeners()
            if wanted is None or listener.port in wanted
            for way in listener.ways()
            for name, say in openings.items()
        ]
        return [job.result() for job in jobs]
