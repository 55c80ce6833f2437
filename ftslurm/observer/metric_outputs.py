"""The outputs of the metrics: a file for node_exporter, and an HTTP server on loopback or a Unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ftslurm.config.receivers import endpoint
from ftslurm.config.schema import MetricsConfig
from ftslurm.run.deliveries import Delivery
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files

CLIENT_S = 5.0  # how long a client may take for its request
MOST_CLIENTS = 200  # at the same time
log = logging.getLogger("ftslurm.observer")


def outputs(metrics: MetricsConfig, run: RunDir) -> Iterator[Textfile | Endpoint]:
    """Yield the outputs that the configuration has. The `update` of each is called about every 15 seconds."""
    if metrics.textfile is not None:
        yield Textfile(Path(metrics.textfile))
    if metrics.listen is not None:
        yield Endpoint(metrics.listen, run)


class Textfile:
    """A file that node_exporter's textfile collector reads."""

    def __init__(self, path: Path) -> None:
        self._path, self.delivery = path, Delivery(f"metrics {path}")

    def update(self, metrics: bytes) -> None:
        """Replace the file."""
        try:
            owned_files.replace_file(self._path, metrics, mode=0o644)  # node_exporter is another user
        except OSError as error:
            self.delivery = _failed(self.delivery, error.strerror or str(error))
        else:
            self.delivery = replace(self.delivery, done=self.delivery.done + 1)


class Endpoint:
    """An HTTP server that Prometheus scrapes, for the path /metrics.

    That of prometheus_client waits for slow clients for ever, has a thread for each, and answers whatever `Host` they
    name.
    """

    def __init__(self, listen: str, run: RunDir) -> None:
        self._address: tuple[str, int] | str = endpoint(listen) or str(run.observer / "metrics.sock")
        self._metrics, self._listens = b"", False
        where = self._address if isinstance(self._address, str) else listen
        self.delivery = Delivery(f"metrics {where}")

    def update(self, metrics: bytes) -> None:
        """Answer with these from now on; start to listen, if that has not been possible yet."""
        self._metrics = metrics
        if self._listens:
            return
        loop = asyncio.new_event_loop()
        try:
            server = loop.run_until_complete(self._listen())
        except OSError as error:
            loop.close()
            self.delivery = _failed(self.delivery, f"cannot listen: {os.strerror(error.errno or 0)} (metrics.listen)")
            return
        self._listens, name = True, self.delivery.name
        if not isinstance(self._address, str):
            name = f"metrics http://{self._address[0]}:{server.sockets[0].getsockname()[1]}/metrics"
        self.delivery = replace(self.delivery, name=name, done=self.delivery.done + 1)
        threading.Thread(target=loop.run_forever, name="metrics", daemon=True).start()

    async def _listen(self) -> asyncio.Server:
        if isinstance(self._address, str):  # the observer's umask lets no other user connect, from the first moment on
            return await asyncio.start_unix_server(self._accepted, self._address)
        return await asyncio.start_server(self._accepted, *self._address)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request. No client can take longer than CLIENT_S, or hold up another one."""
        if len(asyncio.all_tasks()) > MOST_CLIENTS:  # hooks need descriptors, too
            writer.transport.abort()
            return
        try:
            await asyncio.wait_for(self._answer(reader, writer), CLIENT_S)
        except Exception:  # what it sent is no request, it is too slow, or it has gone away
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        hosts = [line.partition(":")[2].strip() for line in headers if line.lower().startswith("host:")]
        status, text = "200 OK", b""
        if not isinstance(self._address, str) and not all(map(_is_loopback, hosts)):
            status = "403 Forbidden"  # a page in a browser, whose author has given his name this address
        elif request.split("?")[0].split()[:2] != ["GET", "/metrics"]:
            status = "404 Not Found"
        else:
            text = self._metrics
        head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(text)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + text)
        writer.close()
        await writer.wait_closed()


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine by an address, which no name service can change."""
    name = re.sub(r":\d+$", "", host).strip("[]")
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return name == "localhost"


def _failed(delivery: Delivery, error: str) -> Delivery:
    if delivery.last_error != error:
        log.warning("%s: %s", delivery.name, error)
    return replace(delivery, done=delivery.done + 1, failed=delivery.failed + 1, last_error=error)
