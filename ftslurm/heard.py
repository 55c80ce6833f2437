"""Is the controller still heard? Its file `alive` says: it touches that with every heartbeat."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ftslurm import trust
from ftslurm.config import Config
from ftslurm.rundir import RunDir

SILENT_S = 30.0  # a file server takes its time to tell other machines of a new time stamp


def age_s(path: Path) -> float | None:
    """Seconds since the file was touched; None: there is none, or it cannot be looked at.

    Opened first, because a network file system then asks its server instead of its cache.
    """
    try:
        fd = trust.open_fd(path)
    except OSError:
        return None
    try:
        return time.time() - os.fstat(fd).st_mtime
    except OSError:
        return None
    finally:
        os.close(fd)


def silent_s(config: Config, run: RunDir) -> float | None:
    """How long the controller has not been heard; None: it is heard, or the run is older than this file."""
    age = age_s(run.alive)
    return age if age is not None and age > max(SILENT_S, 3 * config.health.heartbeat_s) else None
