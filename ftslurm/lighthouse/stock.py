"""torchft's own Lighthouse (`lighthouse.kind=torchft`), in a process that does not import torch.

torchft's Python package imports torch, which takes over a second and 200 MB; its Lighthouse is one native module that
needs neither, and is up in 20 ms when loaded by itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import signal
import socket
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ftslurm import channel
from ftslurm.worker.guard import Task

BIND_FOR_S = 10.0  # a Lighthouse that was killed leaves its port to its successor within this time


def main(task: Task, _orders: int, reports: int) -> NoReturn:
    """Serve until killed. The options are LighthouseConfig's, and local, min_replicas and port (0: any)."""
    options = json.loads(task.options.lighthouse)
    log = os.open(os.path.join(task.options.log_dir, "lighthouse.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.setdefault("RUST_LOG", "warn")
    try:
        server = serve(options)
        port = urlsplit(server.address()).port
        url = f"http://{'127.0.0.1' if options['local'] else socket.gethostname()}:{port}"
        os.write(reports, channel.encode_short("address", task=task.index, url=url))
    except Exception as error:
        os.write(2, f"the Lighthouse cannot start: {error}\n".encode())
        os.write(reports, channel.encode_short("failed", task=task.index, error=str(error), step=None, started=False))
        os._exit(1)
    while True:
        signal.pause()


def serve(options: dict[str, int]) -> Any:
    """Start the server, waiting for its port for a while if it is to have a particular one.

    On a local run only this machine can reach it. On a cluster the other nodes must, and with it whoever has a login
    there: torchft's Lighthouse knows no authentication.
    """
    native = load_native()
    hosts = ("127.0.0.1",) if options["local"] else ("[::]", "0.0.0.0")  # noqa: S104 the second where IPv6 is off
    deadline = time.monotonic() + (BIND_FOR_S if options["port"] else 0.0)
    while True:
        for host in hosts:
            try:
                return native.LighthouseServer(
                    bind=f"{host}:{options['port']}",
                    min_replicas=options["min_replicas"],
                    join_timeout_ms=options["join_timeout_ms"],
                    quorum_tick_ms=options["quorum_tick_ms"],
                    heartbeat_timeout_ms=options["heartbeat_timeout_ms"],
                )
            except Exception:
                if host == hosts[-1] and time.monotonic() >= deadline:
                    raise
        time.sleep(0.05)


def load_native() -> ModuleType:
    """torchft's native module without torchft's Python package.

    Raises:
        ModuleNotFoundError: torchft is not installed for this interpreter.
    """
    spec = importlib.util.find_spec("torchft")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("torchft is not installed for this interpreter (job.python)", name="torchft")
    folder = Path(spec.submodule_search_locations[0])
    library = next(folder.glob("_torchft*.so"))
    loader = importlib.machinery.ExtensionFileLoader("_torchft", str(library))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_torchft", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module
