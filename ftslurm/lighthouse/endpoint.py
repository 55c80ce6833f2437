"""Reserves the address of a run's Lighthouse at its guard."""

from __future__ import annotations

import os
import time

from ftslurm.guard import interfaces
from ftslurm.guard.gateway import Gateway
from ftslurm.lighthouse.output import log
from ftslurm.protocol import addresses

BIND_FOR_S = 2.0  # how long to wait until a predecessor has released the port


def reserve(gateway: Gateway, port: int) -> str:
    """Reserve the Lighthouse's port at its guard and return the address, http://HOST:PORT/lighthouse.

    It waits at most BIND_FOR_S seconds while another process holds the port. When the port changes, the controller
    sends it to the groups' guards, which forward to the Lighthouse.

    Args:
        port: the wanted port, instead of which any other is taken if it stays in use; 0: any, without waiting.

    Raises:
        RuntimeError: no port can be bound, or this node has no such interface (cluster.interface).
    """
    interfaces.announce(os.environ, gateway.announce)
    deadline = time.monotonic() + (BIND_FOR_S if port else 0.0)
    while True:
        try:
            return f"http://{gateway.reserve(port)}/{addresses.LIGHTHOUSE}"
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.05)
            elif port:
                log(f"port {port} is in use: another one is taken")
                port = 0
            else:
                raise RuntimeError(f"no port can be bound: {error}") from error
