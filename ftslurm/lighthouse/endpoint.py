"""Opens the address of a run's Lighthouse: its guard's port, or without a guard a port of its own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ftslurm.guard import interfaces
from ftslurm.guard.gateway import Gateway
from ftslurm.lighthouse.output import log
from ftslurm.protocol import addresses

BIND_FOR_S = 2.0  # how long to wait until a predecessor has released the port

T = TypeVar("T")


def bind_when_free(bind: Callable[[int], T], port: int, *, may_move: bool = False, setting: str) -> T:
    """Bind a port and return what `bind` returns. Wait at most BIND_FOR_S seconds while another process holds the port.

    Args:
        bind: binds this port; OSError if it is not free.
        port: the wanted port; 0: any, without waiting.
        may_move: whether to bind any other port when the wanted one stays in use.
        setting: the setting of the port, for the error.

    Raises:
        RuntimeError: the port cannot be bound.
    """
    deadline = time.monotonic() + (BIND_FOR_S if port else 0.0)
    while True:
        try:
            return bind(port)
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.05)
            elif may_move and port:
                log(f"port {port} is in use: another one is taken")
                port = 0
            else:
                raise RuntimeError(f"port {port} cannot be bound ({setting}): {error}") from error


def reserve(gateway: Gateway, port: int, may_move: bool) -> str:
    """Reserve the Lighthouse's port at its guard and return the address, http://HOST:PORT/lighthouse.

    When the port changes, the controller sends it to the groups' guards, which forward to the Lighthouse.

    Args:
        port, may_move: as for `bind_when_free`.

    Raises:
        RuntimeError: the port cannot be bound, or this node has no such interface (cluster.interface).
    """
    interfaces.announce(os.environ, gateway.announce)
    reserved = bind_when_free(gateway.reserve, port, may_move=may_move, setting="lighthouse.port")
    return f"http://{reserved}/{addresses.LIGHTHOUSE}"


def take(listen: Callable[[str, int], int], local: bool, port: int, may_move: bool) -> str:
    """Listen without a guard, so any client that reaches the port is let in. Return the address, http://HOST:PORT.

    Args:
        listen: listens at a host ("": all addresses) and a port, and returns the port; OSError if it cannot.
        local: whether only this machine reaches it.
        port, may_move: as for `bind_when_free`.

    Raises:
        RuntimeError: the port cannot be bound.
    """
    host = "127.0.0.1" if local else ""
    bound = bind_when_free(partial(listen, host), port, may_move=may_move, setting="port=N; 0: any")
    return f"http://{'127.0.0.1' if local else socket.gethostname()}:{bound}"
