"""Closes torchft's checkpoint server, and its clients, to everything but the run.

`HTTPTransport` sends the state to every client, and unpickles the data of every server. Here the guards of both sides
make the connection and prove to each other that they are of this run (guard/admission.py, guard/forwarder.py) before
they give it to their workers. So no other process gets the state, and no data of another process is unpickled. The
state itself goes directly from worker to worker, at full speed, and is not encrypted. A token in the URL would not
help: the manager gives the URL to every client.
"""

from __future__ import annotations

import http.client
import importlib
import itertools
import socket
import urllib.request
from types import SimpleNamespace
from typing import Any

from ftslurm.guard.gateway import Gateway
from ftslurm.guard.sockets import end_if_silent
from ftslurm.protocol import addresses
from ftslurm.worker.closed_servers import GONE_S, admitted_server


def install(gateway: Gateway) -> None:
    """Close the transports that scripts create from now on. Their URLs name the service where others name a user."""
    module: Any = importlib.import_module("torchft.checkpointing.http_transport")
    numbers = itertools.count()

    class Connection(http.client.HTTPConnection):
        """A connection that the guard makes."""

        def connect(self) -> None:
            service, _, host = self.host.rpartition("@")
            self.sock = gateway.dial(f"{host}:{self.port}/{service}", float(self.timeout or 0))
            end_if_silent(self.sock, GONE_S)
            self.sock.settimeout(self.timeout)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    class Handler(urllib.request.HTTPHandler):
        """Opens http:// addresses by such connections."""

        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, request)

    def address(transport: Any) -> str:
        return f"http://{transport._server.service}@{gateway.reserve()}/checkpoint/"

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Handler())
    module._IPv6HTTPServer = admitted_server(
        module._IPv6HTTPServer, gateway, lambda: f"{addresses.CHECKPOINT}{next(numbers)}"
    )
    module.HTTPTransport.address = address
    module.urllib = SimpleNamespace(request=SimpleNamespace(urlopen=opener.open))
