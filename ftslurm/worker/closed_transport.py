"""Closes torchft's checkpoint server, and its clients, to everything but the run.

`HTTPTransport` sends the state to every client, and unpickles the data of every server. Here both sides of a connection
prove that they are of this run (security/handshake.py) before the first byte of HTTP, so no other process gets the
state, and no data of another process is unpickled. The state itself goes directly from worker to worker, at full speed,
and is not encrypted. A token in the URL would not help: the manager gives the URL to every client.

Many groups may heal from one at the same time, each in several parts, and the threads of the server then wait for one
another. So a client waits for its turn as long as torchft would wait for the state.
"""

from __future__ import annotations

import http.client
import importlib
import random
import socket
import threading
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

from ftslurm.guard.gateway import Gateway
from ftslurm.guard.interfaces import Reach, bracketed, family
from ftslurm.protocol.addresses import CHECKPOINT
from ftslurm.security import handshake

MOST_STRANGERS = 64  # connections without a completed handshake; further ones are closed
AGAIN_S = (0.05, 0.5)  # until a client asks again that was turned away, drawn between these
CONNECT_S = 10.0  # a node that does not answer for so long is gone
GONE_S = 15  # the same while a state is sent: the healer and its donor would wait for torchft's time-out of 60 s


def install(gateway: Gateway, reach: Reach) -> None:
    """Close the transports that scripts create from now on.

    Args:
        reach: how other nodes reach this one.
    """
    module: Any = importlib.import_module("torchft.checkpointing.http_transport")
    base: Any = module._IPv6HTTPServer
    module.socket = SimpleNamespace(**(vars(socket) | {"gethostname": lambda: reach.host}))

    class ClosedServer(base):  # type: ignore[misc]
        """Serves clients after their handshake, each in a thread of its own."""

        address_family = family(reach.address)

        def __init__(self, address: tuple[str, int], handler: Any) -> None:
            super().__init__((reach.address or address[0], address[1]), handler)
            self.room = threading.BoundedSemaphore(MOST_STRANGERS)

        def process_request(self, request: Any, client_address: Any) -> None:
            if not self.room.acquire(blocking=False):
                self.shutdown_request(request)
                return
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread is available: free the place again
                self.room.release()
                raise

        def finish_request(self, request: Any, client_address: Any) -> None:
            here = f"{reach.host}:{self.socket.getsockname()[1]}"
            try:
                handshake.demand(request, _key(gateway), here, CHECKPOINT)
            except OSError:
                words = f"a connection from {client_address[0]} to the checkpoint server, by somebody not of this run"
                gateway.tell("checkpoint", words)
                return
            finally:
                self.room.release()
            _end_if_gone(request)
            super().finish_request(request, client_address)

    class Connection(http.client.HTTPConnection):
        """A connection that performs the handshake before the first request."""

        def connect(self) -> None:
            _connect(self, gateway)

    class Handler(urllib.request.HTTPHandler):
        """Opens http:// addresses by connections with a handshake."""

        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, request)

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Handler())
    module._IPv6HTTPServer = ClosedServer
    module.urllib = SimpleNamespace(request=SimpleNamespace(urlopen=opener.open))


def _connect(client: http.client.HTTPConnection, gateway: Gateway) -> None:
    """Connect, and perform the handshake; as often as the server is busy, within the time-out of the request.

    Raises:
        OSError: there is no server, it is not of this run, or it stays busy.
    """
    patience = client.timeout if isinstance(client.timeout, (int, float)) else handshake.PATIENCE_S
    deadline = time.monotonic() + patience
    address = f"{bracketed(client.host)}:{client.port}/{CHECKPOINT}"
    while True:
        client.sock = socket.create_connection((client.host, client.port), min(patience, CONNECT_S))
        _end_if_gone(client.sock)
        try:
            handshake.introduce(client.sock, _key(gateway), address, deadline - time.monotonic())
            client.sock.settimeout(patience)
            client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return
        except handshake.Refused as error:
            gateway.tell("server", f"the checkpoint of another group: {error}")
            raise
        except ConnectionResetError:  # the server may have MOST_STRANGERS connections at the moment
            client.sock.close()
            if time.monotonic() + AGAIN_S[1] > deadline:
                raise
        time.sleep(random.uniform(*AGAIN_S))  # noqa: S311 - not a secret


def _end_if_gone(connection: socket.socket) -> None:
    """Have the kernel end a connection if the node at its other end vanishes, which closes none."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_S * 1000)


def _key(gateway: Gateway) -> bytes:
    key = gateway.key()
    if not key:
        raise handshake.Refused("the controller has not told the run's key")
    return key
