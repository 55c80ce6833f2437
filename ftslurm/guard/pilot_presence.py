"""Is the pilot of this Slurm job still there? It holds a name on its node, and the guards beside it look for that.

A node that crashes and is back at once keeps its job RUNNING in Slurm's eyes, and the job's batch process is gone. The
name is an abstract Unix socket's, so it ends with its holder; it is made of the run's key, so nobody else can take it.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import socket
from collections.abc import Callable


def address(key: bytes, job: str) -> bytes:
    """The name that the pilot of a job holds. job: what Slurm calls it in SLURM_JOB_ID."""
    words = b"\0".join((key, job.encode(errors="surrogateescape"), str(os.getuid()).encode()))
    return b"\0ftslurm-pilot-" + hashlib.sha256(words).hexdigest()[:40].encode()


def hold(key: bytes, job: str) -> socket.socket | None:
    """Take the name, until the socket is closed; None: another pilot of this job holds it."""
    post = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        post.bind(address(key, job))
    except OSError:
        post.close()
        return None
    return post


def is_held(key: bytes) -> bool | None:
    """Whether the job of this process has its pilot; None: the key is not known yet, or this is no job."""
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
    """Call `end` when a process of this machine has ended: it starts our controller again, and nobody else can."""
    why = "the process beside which the controller ran has ended"
    try:
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, lambda _: end(why))
    except ProcessLookupError:
        end(why)
    except OSError:
        pass  # a kernel before 5.3: the silence rule ends us
