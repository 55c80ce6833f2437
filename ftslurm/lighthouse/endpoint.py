"""Where a run's Lighthouse is reached: at its guard's port, and behind that on what nobody else can connect to."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress

from ftslurm.guard.gateway import Gateway
from ftslurm.lighthouse.output import log
from ftslurm.protocol import addresses

BIND_FOR_S = 2.0  # so long the port of a predecessor is waited for; then any other will do
LONGEST = 80  # of where the folder for a Unix socket is: the socket's whole path may have 107 bytes


def reserve(gateway: Gateway, port: int, may_move: bool) -> str:
    """The address of the Lighthouse, http://HOST:PORT/lighthouse.

    Should somebody else have taken a predecessor's port, it moves to another: the groups' guards are told and forward.

    Args:
        port: which it is to have; 0: any.
        may_move: whether another will do if that one is taken.

    Raises:
        RuntimeError: the port cannot be had.
    """
    deadline = time.monotonic() + (BIND_FOR_S if port else 0.0)
    while True:
        try:
            return f"http://{gateway.reserve(port)}/{addresses.LIGHTHOUSE}"
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.05)
            elif may_move and port:
                log(f"port {port} is taken: moving to another")
                port = 0
            else:
                raise RuntimeError(f"port {port} cannot be had (lighthouse.port): {error}") from error


async def take(listen: Callable[[str], int], local: bool, port: int, may_move: bool) -> str:
    """The address, http://HOST:PORT, of a Lighthouse without a guard: whoever can reach it is let in.

    Args:
        listen: listens at HOST:PORT and returns the port; 0 or RuntimeError: it cannot be had.
        local: whether only this machine is to reach it.
        port, may_move: as for `reserve`.

    Raises:
        RuntimeError: the port cannot be had.
    """
    hosts = ("127.0.0.1",) if local else ("[::]", "0.0.0.0")  # noqa: S104 the second where IPv6 is off
    deadline = time.monotonic() + (BIND_FOR_S if port else 0.0)
    while True:
        for host in hosts:
            with suppress(RuntimeError):
                if got := listen(f"{host}:{port}"):
                    return f"http://{'127.0.0.1' if local else socket.gethostname()}:{got}"
        if time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        elif may_move and port:
            log(f"port {port} is taken: moving to another")
            port = 0
        else:
            raise RuntimeError(f"port {port} cannot be had on {' or '.join(hosts)}")


def folder() -> str:
    """A new folder of mode 0700 for a Unix socket, on this machine."""
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="ftslurm-", dir=base if len(base) <= LONGEST else "/tmp")  # noqa: S108
