"""Chooses how a group that comes back gets the training's state from a live one: the setting torchft.transport.

torchft's Manager serves the state over HTTP in one stream, which one core reads and writes. Here it is served in
CHUNKS parts that are fetched side by side, or sent through the process group (torchft's PGTransport). A transport that
the script gives its Manager stays.

The two sides of a heal do not tell each other into how many parts the state is split. A donor may have fewer or, if its
Manager is torchft's own, none. Then the state is fetched as a whole.
"""

from __future__ import annotations

import importlib
import os
from typing import Any
from urllib.error import HTTPError

VARIABLE = "FTSLURM_TRANSPORT"
HTTP, PROCESS_GROUP = "http", "process_group"
CHUNKS = 8  # 1.8 to 2.5 times as fast as one stream on two cores (benchmarks/healing.py)


def transport(pg: Any, timeout: Any) -> Any:
    """Return the transport that the run is set to, for a Manager with these arguments."""
    return (_process_group if os.environ.get(VARIABLE) == PROCESS_GROUP else _http)(pg, timeout)


def _http(_: Any, timeout: Any) -> Any:
    http: Any = importlib.import_module("torchft.manager").HTTPTransport

    class HTTPTransport(http):  # type: ignore[misc]
        def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: Any) -> Any:
            try:
                return super().recv_checkpoint(src_rank, metadata, step, timeout)
            except HTTPError as error:
                if "list index out of range" not in error.reason:  # what a donor answers that has fewer parts
                    raise
                return self._load_from_address(f"{metadata}{step}/full", timeout)

    return HTTPTransport(timeout=timeout, num_chunks=CHUNKS)


def _process_group(pg: Any, timeout: Any) -> Any:
    import torch
    from torchft.checkpointing.pg_transport import PGTransport

    class WatchedPGTransport(PGTransport):  # type: ignore[misc]
        """Notes whether it sends or receives: then a member that is gone is waited for here (quorum_abort.py)."""

        busy = False

        def send_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            self._while_busy(super().send_checkpoint, *args, **kwargs)

        def recv_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            return self._while_busy(super().recv_checkpoint, *args, **kwargs)

        def _while_busy(self, transfer: Any, *args: Any, **kwargs: Any) -> Any:
            self.busy = True
            try:
                return transfer(*args, **kwargs)
            finally:
                self.busy = False

    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in pg.name() else torch.device("cpu")
    return WatchedPGTransport(pg, timeout, device)
