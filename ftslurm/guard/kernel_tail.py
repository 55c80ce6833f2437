"""Reads what the kernel writes into its log, as far as this user may, without waiting.

Most clusters let only the administrator read it (kernel.dmesg_restrict=1): then a Tail says so, which is not the same
as a log without faults. Every guard imports this, so it has only what is quick to import.
"""

from __future__ import annotations

import contextlib
import os
import time

KMSG = "/dev/kmsg"
_RECORD = 8192  # bytes; the kernel refuses to fill a smaller buffer


class Tail:
    """The lines that the kernel writes from now on."""

    def __init__(self, path: str = KMSG, *, from_the_start: bool = False) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):  # kernel.dmesg_restrict, or a container without it
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            self._fd = fd
            if not from_the_start:
                os.lseek(fd, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        """Whether this user may read the kernel log."""
        return self._fd is not None

    def lines(self, most_s: float = 0.1) -> list[str]:
        """Return the lines since the last call; a flood of them ends after most_s seconds."""
        found: list[str] = []
        deadline = time.monotonic() + most_s
        while self._fd is not None and time.monotonic() < deadline:
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel has overwritten records that were not read yet
            except OSError:
                self.close()
                break
            if not record:
                break
            # One record of /dev/kmsg is a line, and below it indented lines about the device.
            found += [line for line in record.decode(errors="replace").splitlines() if line[:1] != " "]
        return found

    def close(self) -> None:
        """Close the kernel log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
