"""torchft's own Lighthouse (`lighthouse.kind=torchft`), in a process that does not import torch.

torchft's Python package imports torch, which takes over a second and 200 MB; its Lighthouse is one native module that
needs neither, and is up in 20 ms when loaded by itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ftslurm.guard import processes
from ftslurm.guard.gateway import Gateway
from ftslurm.protocol import addresses, messages
from ftslurm.worker import patch_fit

Report = Callable[[messages.Report], None]


async def serve(options: dict[str, Any], _orders: int, report: Report, gateway: Gateway, url: str) -> NoReturn:
    """Serve on loopback until killed, in threads of its own. It has no authentication; its guard lets only the run in.

    Args:
        options, gateway, url: as for server.serve; it takes no orders.
    """
    processes.fence(os.environ)
    os.environ.setdefault("RUST_LOG", "warn")
    times = {name: options[name] for name in ("join_timeout_ms", "quorum_tick_ms", "heartbeat_timeout_ms")}
    server = load_native().LighthouseServer(bind="127.0.0.1:0", min_replicas=options["min_replicas"], **times)
    gateway.publish(addresses.LIGHTHOUSE, int(server.address().rpartition(":")[2]))
    report(messages.LighthouseUp(url, patch_fit.torchft()))
    while True:
        await asyncio.sleep(3600)


def load_native() -> ModuleType:
    """Load torchft's native module without torchft's Python package.

    Raises:
        ModuleNotFoundError: torchft is not installed for this interpreter.
    """
    spec = importlib.util.find_spec("torchft")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("torchft is not installed for this interpreter (job.python)", name="torchft")
    folder = Path(spec.submodule_search_locations[0])
    native: Any = importlib.util.spec_from_file_location("_torchft", next(folder.glob("_torchft*.so")))
    module = importlib.util.module_from_spec(native)
    native.loader.exec_module(module)
    return module
