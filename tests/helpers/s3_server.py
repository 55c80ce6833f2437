"""An S3 server on this machine, in a process of its own, and the environment that leads to it."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PATIENCE_S = 60.0
SERVE = "import sys\nfrom moto.server import main\nmain(['-H', '127.0.0.1', '-p', sys.argv[1]])"


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """Start the server with an empty bucket; yield the variables for its clients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert server.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline, "the S3 server does not answer"
            with suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=10)
                break
            time.sleep(0.1)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()
