"""Closes torchft's checkpoint server, and its clients, to everything but the run.

`HTTPTransport` sends the state to every client, and unpickles the data of every server. Here both sides of a connection
prove that they are of this run (security/handshake.py) before the first byte of HTTP, so no other process gets the
state, and no data of another process is unpickled. The state itself goes directly from worker to worker, at full speed,
and is not encrypted. A token in the URL would not help: the manager gives the URL to every client.
"""

from __future__ import annotations

import http.client
import importlib
import socket
import threading
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

from ftslurm.guard.gateway import Gateway
from ftslurm.guard.interfaces import Reach, bracketed
from ftslurm.protocol.addresses import CHECKPOINT
from ftslurm.security import handshake
from ftslurm.worker import patch_fit

MOST_STRANGERS = 64  # connections without a completed handshake; further ones are closed
AGAIN_S = 0.05


def install(gateway: Gateway, reach: Reach, module: Any = None) -> None:
    """Close the transports that scripts create from now on.

    Args:
        reach: how other nodes reach this one.

    Raises:
        patch_fit.Misfit: this torchft creates its server or its clients in another way; it must not be used.
    """
    module = module or importlib.import_module("torchft.checkpointing.http_transport")
    patch_fit.require(
        module, "_IPv6HTTPServer.finish_request(request, client_address)", "socket.gethostname()", "urllib.request"
    )
    patch_fit.require(module, *(f"HTTPTransport.{name}" for name in ("_IPv6HTTPServer", "gethostname", "urlopen")))
    base: Any = module._IPv6HTTPServer
    module.socket = SimpleNamespace(**(vars(socket) | {"gethostname": lambda: reach.host}))

    class ClosedServer(base):  # type: ignore[misc]
        """Serves clients after their handshake, each in a thread of its own."""

        address_family = socket.AF_INET if "." in reach.address else base.address_family

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
            super().finish_request(request, client_address)

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Handler(gateway))
    module._IPv6HTTPServer = ClosedServer
    module.urllib = SimpleNamespace(request=SimpleNamespace(urlopen=opener.open))


class _Handler(urllib.request.HTTPHandler):
    """Opens http:// addresses by connections with a handshake."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self.gateway = gateway

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(lambda host, **words: _Connection(self.gateway, host, **words), request)


class _Connection(http.client.HTTPConnection):
    """A connection that performs the handshake before the first request."""

    def __init__(self, gateway: Gateway, host: str, **words: Any) -> None:
        super().__init__(host, **words)
        self.gateway = gateway

    def connect(self) -> None:
        """Connect, and perform the handshake.

        Raises:
            OSError: there is no server, or it is not of this run.
        """
        deadline = time.monotonic() + handshake.PATIENCE_S
        while True:
            super().connect()
            assert isinstance(self.sock, socket.socket)
            try:
                handshake.introduce(self.sock, _key(self.gateway), f"{bracketed(self.host)}:{self.port}/{CHECKPOINT}")
                return
            except handshake.Refused as error:
                self.gateway.tell("server", f"the checkpoint of another group: {error}")
                raise
            except ConnectionResetError:  # the server may have MOST_STRANGERS connections at the moment
                self.sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)


def _key(gateway: Gateway) -> bytes:
    key = gateway.key()
    if not key:
        raise handshake.Refused("the controller has not told the run's key")
    return key
