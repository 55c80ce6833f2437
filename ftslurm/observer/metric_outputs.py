"""The outputs of the metrics: a file for node_exporter, and an HTTP server on loopback or a Unix socket."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ftslurm.config.receivers import endpoint
from ftslurm.config.schema import MetricsConfig
from ftslurm.run.deliveries import Delivery
from ftslurm.run.directory import RunDir

CLIENT_S = 5.0  # how long a client may take for its request
log = logging.getLogger("ftslurm.observer")


class Output(Protocol):
    """An output of the metrics."""

    delivery: Delivery

    def update(self) -> None:
        """Bring it up to date; called about every metrics.every_s seconds, and at the end. Never raises."""


def outputs(metrics: MetricsConfig, run: RunDir, render: Callable[[], bytes]) -> Iterator[Output]:
    """Yield the outputs that the configuration has."""
    if metrics.textfile is not None:
        yield Textfile(Path(metrics.textfile), render)
    if metrics.listen is not None:
        yield Endpoint(metrics.listen, run, render)


class Textfile:
    """A file that node_exporter's textfile collector reads."""

    def __init__(self, path: Path, render: Callable[[], bytes]) -> None:
        self._path, self._render = path, render
        self.delivery = Delivery(f"metrics {path}")

    def update(self) -> None:
        """Replace the file."""
        part = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}.part")
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, 0o644)  # node_exporter is another user
                file.write(self._render())
            part.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            self.delivery = _failed(self.delivery, error.strerror or str(error))
        else:
            self.delivery = replace(self.delivery, done=self.delivery.done + 1)


class Endpoint:
    """An HTTP server that Prometheus scrapes, for the path /metrics."""

    def __init__(self, listen: str, run: RunDir, render: Callable[[], bytes]) -> None:
        self._address: tuple[str, int] | str = endpoint(listen) or str(run.observer / "metrics.sock")
        self._render = render
        self._server: HTTPServer | None = None
        where = self._address if isinstance(self._address, str) else listen
        self.delivery = Delivery(f"metrics {where}")

    def update(self) -> None:
        """Start to listen, if that has not been possible yet."""
        if self._server is not None:
            return
        try:
            self._server = _listen(self._address, self._render)
        except OSError as error:
            self.delivery = _failed(self.delivery, f"cannot listen: {error.strerror or error} (metrics.listen)")
            return
        name = self.delivery.name
        if not isinstance(self._address, str):
            name = f"metrics http://{self._server.server_address[0]!s}:{self._server.server_address[1]}/metrics"
        self.delivery = replace(self.delivery, name=name, done=self.delivery.done + 1)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()


def _listen(address: tuple[str, int] | str, render: Callable[[], bytes]) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            text = render()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def address_string(self) -> str:
            return "client"

    if isinstance(address, str):
        with suppress(OSError):
            if stat.S_ISSOCK(os.lstat(address).st_mode) and os.lstat(address).st_uid == os.geteuid():
                Path(address).unlink()  # of the observer before
        server: HTTPServer = _UnixServer(address, Handler)  # type: ignore[arg-type]
        return server
    return (_Server6 if ":" in address[0] else _Server)(address, Handler)


class _Server(HTTPServer):
    def server_bind(self) -> None:
        """Bind without a look at the name service, which HTTPServer takes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", 0

    def handle_error(self, *_: object) -> None:
        """Ignore a client that goes away."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        """Bind; the observer's umask lets no other user connect, from the first moment on."""
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


def _failed(delivery: Delivery, error: str) -> Delivery:
    if delivery.last_error != error:
        log.warning("%s: %s", delivery.name, error)
    return replace(delivery, done=delivery.done + 1, failed=delivery.failed + 1, last_error=error)
