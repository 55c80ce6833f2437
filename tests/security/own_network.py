"""A network namespace with nothing but `lo`: a scan finds one run only and disturbs no other process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

ADDRESS = "198.51.100.1"  # reserved for documentation; with loopback addresses alone slurmctld sees no network
_CLONE_NEWNET = 0x40000000
_SIOCSIFADDR, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x8914, 1


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Move this thread, and the processes that it starts meanwhile, into a new network namespace.

    Raises:
        OSError: this process may not make one, or the kernel cannot.
    """
    addresses = [ADDRESS, *_own_addresses()]
    outside = _present()
    if _libc().setns(outside, _CLONE_NEWNET) != 0:  # root of a user namespace alone: from here there is no way back
        os.close(outside)
        _unshare(addresses)
        outside = _present()
    try:
        _unshare(addresses)
        try:
            yield
        finally:
            _check(_libc().setns(outside, _CLONE_NEWNET))
    finally:
        os.close(outside)


def _present() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _unshare(addresses: list[str]) -> None:
    _check(_libc().unshare(_CLONE_NEWNET))
    _bring_up("lo")
    for number, address in enumerate(addresses):  # a machine must reach itself by its own name
        _give_address(f"lo:{number}", address)


def _own_addresses() -> list[str]:
    """Return the addresses of this machine's name but loopback."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(where[0]) for *_, where in found if not str(where[0]).startswith("127.")})


def _bring_up(name: str) -> None:
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), _IFF_UP))


def _give_address(name: str, address: str) -> None:
    where = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFADDR, struct.pack("16s16s8x", name.encode(), where))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
