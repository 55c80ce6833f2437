"""A server of this process, made to be reached by the run alone: its guard gets its listening socket (inner.py)."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from ftslurm.guard.gateway import Gateway
from ftslurm.security import socket_owners

SWEEP_FOR_S = 2.0  # so long a stranger's connection may take to get from the kernel to the server that is to be closed


def publish(gateway: Gateway, service: str, listener: int, port: int) -> None:
    """Let the run reach a server that listens on loopback, and nobody else. Strangers who were quicker are cut off.

    Args:
        listener: the descriptor of its socket.

    Raises:
        OSError: the guard could not.
    """
    gateway.publish(service, listener)
    deadline = time.monotonic() + SWEEP_FOR_S
    while strangers := {client for client, uid in socket_owners.clients_of(port) if uid != os.getuid()}:
        for sock in _own_sockets():
            with suppress(OSError):
                if sock.getsockname()[1] == port and sock.getpeername()[:2] in strangers:
                    gateway.tell("early", f"a connection of a stranger to the {service} of this worker, just made")
                    sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)


def _own_sockets() -> list[socket.socket]:
    """Copies of this process's TCP sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                copy = socket.socket(fileno=os.dup(int(name)))
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    found.append(copy)
                else:
                    copy.close()
    return found


def listener_at(port: int) -> socket.socket:
    """A copy of this process's socket that listens at a port.

    Raises:
        OSError: there is none.
    """
    found = None
    for sock in _own_sockets():
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and sock.getsockname()[1] == port
        if listens and found is None:
            found = sock
        else:
            sock.close()
    if found is None:
        raise OSError(f"nothing of this process listens at port {port}")
    return found
