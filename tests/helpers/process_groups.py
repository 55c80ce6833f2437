"""Sets up torchft's process groups as a Manager does, with torchft 0.2 (`configure`) and 0.3 (`reconfigure`)."""

from __future__ import annotations

import importlib.util
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

_FOUND = importlib.util.find_spec("torchft")
assert _FOUND is not None
assert _FOUND.origin is not None
# Whether it is torchft 0.2; read, because an import takes seconds.
STABLE = "def configure(" in Path(_FOUND.origin).with_name("process_group.py").read_text()


def set_up(group: Any, port: int, quorum: int, rank: int, members: int) -> None:
    """Connect a process group to the other members of a quorum, who meet in the store at this port of loopback."""
    if STABLE:
        place = f"127.0.0.1:{port}/torchft/{quorum}/0"
        group.configure(place, "a", rank, members, quorum, 0, 1, list(range(members)))
        return
    ids = [group._handle_id() if one == rank else f"{one}" for one in range(members)]
    handles = ({"id": one, "store": f"127.0.0.1:{port}/store", "global_rank": None} for one in ids)
    group.reconfigure(options(quorum, [json.dumps(handle) for handle in handles])).wait()


def options(quorum: int, handles: list[str]) -> Any:
    """Return what a Manager of torchft 0.3 gives its process group for a quorum."""
    made = importlib.import_module("torchft.process_group").ReconfigureOptions()
    made.uuid, made.handles, made.timeout = quorum, handles, timedelta(seconds=60)
    return made
