"""torchft's own Lighthouse (`lighthouse.kind=torchft`), in a process that does not import torch.

torchft's Python package imports torch, which takes over a second and 200 MB; its Lighthouse is one native module that
needs neither, and is up in 20 ms when loaded by itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import socket
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ftslurm import channel
from ftslurm.lighthouse import output
from ftslurm.worker.guard import Task

BIND_FOR_S = 2.0  # so long the port of a predecessor is waited for; then any other will do


def main(task: Task, _orders: int, reports: int) -> NoReturn:
    """Serve until killed. The options are LighthouseConfig's, and those that launchers/program.py adds."""
    options = json.loads(task.options.lighthouse)
    output.redirect(task)
    os.environ.setdefault("RUST_LOG", "warn")
    try:
        server = serve(options)
        port = urlsplit(server.address()).port
        url = f"http://{'127.0.0.1' if options['local'] else socket.gethostname()}:{port}"
        os.write(reports, channel.encode_short("address", task=task.index, url=url))
    except Exception as error:
        output.log(f"the Lighthouse cannot start: {error}")
        os.write(reports, channel.encode_short("failed", task=task.index, error=str(error), step=None, started=False))
        output.flush()
        os._exit(1)
    pulse = output.Pulse(task)
    while True:  # it serves in threads of its own, which stand still when the process is stopped, as this one does
        pulse.beat()
        time.sleep(output.BEAT_EVERY_S)


def serve(options: dict[str, int]) -> Any:
    """Start the server, waiting for its port for a while if it is to have a particular one.

    On a local run only this machine can reach it. On a cluster the other nodes must, and with it whoever has a login
    there: torchft's Lighthouse knows no authentication. Should somebody else have taken a predecessor's port, it moves
    to another: the groups' guards are told and forward.
    """
    native = load_native()
    hosts = ("127.0.0.1",) if options["local"] else ("[::]", "0.0.0.0")  # noqa: S104 the second where IPv6 is off
    port = options["port"]
    deadline = time.monotonic() + (BIND_FOR_S if port else 0.0)
    while True:
        for host in hosts:
            try:
                return native.LighthouseServer(
                    bind=f"{host}:{port}",
                    min_replicas=options["min_replicas"],
                    join_timeout_ms=options["join_timeout_ms"],
                    quorum_tick_ms=options["quorum_tick_ms"],
                    heartbeat_timeout_ms=options["heartbeat_timeout_ms"],
                )
            except Exception:
                if host != hosts[-1] or time.monotonic() < deadline:
                    continue
                if not port or not options["may_move"]:
                    raise
                output.log(f"port {port} is taken: moving to another")
                port = 0
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
