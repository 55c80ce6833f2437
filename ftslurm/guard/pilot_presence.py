"""Detects whether the pilot of a Slurm job is alive: it holds a socket name on its node, which the guards there check.

When a node crashes and is back at once, Slurm still shows its job as RUNNING, but the job's batch process is gone. The
name is that of an abstract Unix socket, so it vanishes with the pilot. Whoever takes it afterwards is another user, or
another pilot of the job.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable

from ftslurm.guard.connection import address, peer_uid


class Presence:
    """A pilot's side: holds the name of a job until the process ends."""

    def __init__(self, key: bytes, job: str) -> None:
        """Bind the name.

        Raises:
            OSError: another process holds it.
        """
        self._post = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._post.bind(address(key, "pilot", job))
        self._post.listen()
        self._post.setblocking(False)

    def tend(self) -> None:
        """Make room for those who ask: the kernel has answered them."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._post.accept()[0].close()


def is_held(key: bytes, job: str | None) -> bool | None:
    """Return whether the pilot of a job is alive on this node; None: that cannot be found out, or there is no job."""
    if not key or not job:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as look:
        look.setblocking(False)
        try:
            look.connect(address(key, "pilot", job))
            return peer_uid(look) == os.getuid()
        except ConnectionRefusedError:
            return False
        except OSError:
            return None


def end_with(selector: selectors.BaseSelector, pid: int, end: Callable[[str], object]) -> None:
    """Call `end` when process `pid`, which restarts the controller, has ended."""
    why = "the process beside which the controller ran has ended"
    try:
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, lambda _: end(why))
    except ProcessLookupError:
        end(why)
    except OSError:
        pass  # a kernel before 5.3: the guard ends by --orphan-after-s instead
