"""Reserves the address of a run's Lighthouse at its guard."""

from __future__ import annotations

import os

from ftslurm.guard import interfaces
from ftslurm.guard.gateway import Gateway
from ftslurm.protocol import addresses


def reserve(gateway: Gateway) -> str:
    """Return http://HOST:PORT/lighthouse; the controller sends it to the groups' guards, which forward to it.

    Raises:
        RuntimeError: this node has no such interface (cluster.interface).
        OSError: no port can be bound.
    """
    interfaces.announce(os.environ, gateway.announce)
    return f"http://{gateway.reserve()}/{addresses.LIGHTHOUSE}"
