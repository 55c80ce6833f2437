"""Detects whether the pilot of a Slurm job is alive: it holds a socket name on its node, which the guards there check.

When a node crashes and is back at once, Slurm still shows its job as RUNNING, but the job's batch process is gone. The
name is that of an abstract Unix socket, so it vanishes with the pilot. It is derived from the run's key, so no other
user can take it.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import socket
from collections.abc import Callable


def address(key: bytes, job: str) -> bytes:
    """Return the name that the pilot of a job holds. job: its SLURM_JOB_ID."""
    words = b"\0".join((key, job.encode(errors="surrogateescape")))
    return b"\0ftslurm-pilot-" + hashlib.sha256(words).hexdigest()[:40].encode()


def hold(key: bytes, job: str) -> socket.socket | None:
    """Bind the name until the returned socket is closed; None: another pilot of this job holds it."""
    post = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        post.bind(address(key, job))
    except OSError:
        post.close()
        return None
    return post


def is_held(key: bytes) -> bool | None:
    """Return whether the pilot of this process's job is alive; None: the key is not known yet, or this is no job."""
    job = os.environ.get("SLURM_JOB_ID")
    if not key or not job:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as look:
        try:
            look.connect(address(key, job))
        except ConnectionRefusedError:
            return False
        except OSError:
            return None
    return True


def end_with(selector: selectors.BaseSelector, pid: int, end: Callable[[str], object]) -> None:
    """Call `end` when process `pid`, which restarts the controller, has ended."""
    why = "the process beside which the controller ran has ended"
    try:
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, lambda _: end(why))
    except ProcessLookupError:
        end(why)
    except OSError:
        pass  # a kernel before 5.3: the guard ends by health.orphan_after_s instead
