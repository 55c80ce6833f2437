"""Chooses how a group that comes back gets the training's state from a live one: the setting torchft.transport.

torchft's Manager serves the state over HTTP in one stream, which one core reads and writes. Here it is served in
CHUNKS parts that are fetched side by side, or sent through the process group (torchft's PGTransport). A transport that
the script gives its Manager stays.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

VARIABLE = "FTSLURM_TRANSPORT"
HTTP, PROCESS_GROUP = "http", "process_group"
CHUNKS = 8  # 1.8 to 2.5 times as fast as one stream on two cores (benchmarks/healing.py)


def transport(pg: Any, timeout: Any) -> Any:
    """Return the transport that the run is set to, for a Manager with these arguments."""
    if os.environ.get(VARIABLE) != PROCESS_GROUP:
        return importlib.import_module("torchft.manager").HTTPTransport(timeout=timeout, num_chunks=CHUNKS)
    import torch
    from torchft.checkpointing.pg_transport import PGTransport

    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in pg.name() else torch.device("cpu")
    return PGTransport(pg, timeout, device)
