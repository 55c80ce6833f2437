"""RUN/observer/deliveries.json: how much of the journal each hook, callback and output of metrics has got.

The observer writes it; status and summary read it, and so does the next observer, which goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass

from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.journal import integer, text
from ftslurm.security import owned_files
from ftslurm.security.json_text import read_object
from ftslurm.security.terminal import visible


@dataclass(frozen=True)
class Delivery:
    """What one receiver has got."""

    name: str  # hook notify.sh, callback my_package.MyCallback, metrics unix:...
    offset: int = 0  # byte of the journal up to which it is done
    done: int = 0  # events that were tried
    failed: int = 0  # of these
    dropped: int = 0  # events that were not tried because too many waited
    last_error: str | None = None


def read(run: RunDir) -> tuple[Delivery, ...]:
    """Return the deliveries of a run, none if it has no observer. Names and errors are safe to print."""
    with suppress(OSError):
        found = (read_object(owned_files.read_text(run.observer / "deliveries.json")) or {}).get("deliveries")
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        return tuple(_delivery(row) for row in rows)
    return ()


def write(run: RunDir, deliveries: Iterable[Delivery]) -> None:
    """Replace the file.

    Raises:
        OSError: it cannot be written.
    """
    replace_text(run.observer / "deliveries.json", json.dumps({"deliveries": [asdict(one) for one in deliveries]}))


def _delivery(row: dict[str, object]) -> Delivery:
    error = text(row, "last_error")
    counts = {name: max(0, integer(row, name) or 0) for name in ("offset", "done", "failed", "dropped")}
    return Delivery(visible(text(row, "name") or "?"), **counts, last_error=None if error is None else visible(error))
