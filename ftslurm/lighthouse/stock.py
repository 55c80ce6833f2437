"""torchft's own Lighthouse (`lighthouse.kind=torchft`), in a process that does not import torch.

torchft's Python package imports torch, which takes over a second and 200 MB; its Lighthouse is one native module that
needs neither, and is up in 20 ms when loaded by itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ftslurm.guard import gateway
from ftslurm.guard.guard import Task
from ftslurm.lighthouse import endpoint, output
from ftslurm.protocol import addresses, messages
from ftslurm.worker import patch_fit


def main(task: Task, _orders: int, reports: int) -> NoReturn:
    """Serve until killed. The options are LighthouseConfig's, and those that launchers/program.py adds."""
    options = json.loads(task.options.lighthouse)
    output.redirect(task)
    os.environ.setdefault("RUST_LOG", "warn")
    try:
        url = endpoint.reserve(task.gateway, options["port"])
        server = serve(options)
        port = int(server.address().rpartition(":")[2])
        with gateway.listener_at(port) as listener:
            gateway.publish(task.gateway, addresses.LIGHTHOUSE, listener.fileno(), port)
        os.write(reports, messages.encode_report(messages.LighthouseUp(url, patch_fit.torchft()), task.index))
    except Exception as error:
        output.log(f"the Lighthouse cannot start: {error}")
        failed = messages.Failed(str(error), None, None, started=False)
        os.write(reports, messages.encode_report(failed, task.index))
        output.flush()
        os._exit(1)
    pulse = output.Pulse(task.position)
    while True:  # it serves in its own threads, which stop and continue together with this one
        pulse.beat()
        time.sleep(output.BEAT_EVERY_S)


def serve(options: dict[str, int]) -> Any:
    """Start the server on loopback. It has no authentication; its guard lets only the run in."""
    return load_native().LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=options["min_replicas"],
        join_timeout_ms=options["join_timeout_ms"],
        quorum_tick_ms=options["quorum_tick_ms"],
        heartbeat_timeout_ms=options["heartbeat_timeout_ms"],
    )


def load_native() -> ModuleType:
    """Load torchft's native module without torchft's Python package.

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
