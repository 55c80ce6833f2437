"""Reads the kernel log, as far as this user may, without waiting, and finds the signs of broken hardware in it.

Most clusters let only the administrator read it (kernel.dmesg_restrict=1): then a Tail says so, which is not the same
as a log without faults. The times in it are those of the kernel's own clock, which drifts from CLOCK_MONOTONIC by
minutes within weeks.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from ftslurm.guard.gpus import pci
from ftslurm.run import log_signs

KMSG = "/dev/kmsg"
_RECORD = 8192  # bytes; the kernel refuses to fill a smaller buffer
LONGEST = 200  # characters of a line that are kept
_KMSG = re.compile(r"^\d+,\d+,(\d+),[^;]*;(.*)$")  # level and facility, number, microseconds since the boot, flags
_GPU = re.compile(r"(?:PCI:|Xid \(|GPU (?:at )?|nvidia |amdgpu )([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")


class KernelFault(NamedTuple):
    """A line of the kernel log with a sign of broken hardware."""

    sign: log_signs.Sign
    gpu: str | None  # PCI address, such as 0000:3b:00; None: the line names none
    text: str  # the kernel's words
    at: float | None  # seconds since the boot; None: the line has no such time


def parse(lines: Iterable[str]) -> list[KernelFault]:
    """Return the faults in lines of the kernel log, in order.

    Args:
        lines: of /dev/kmsg; of another one no time is known.
    """
    found = []
    for line in lines:
        record = _KMSG.match(line)
        at, text = (int(record[1]) / 1e6, record[2]) if record else (None, line)
        sign = log_signs.find(text)
        if sign is not None:
            gpu = _GPU.search(text)
            found.append(KernelFault(sign, None if gpu is None else pci(gpu[1]), text[:LONGEST], at))
    return found


def read(path: str = KMSG, most_s: float = 0.5) -> list[str] | None:
    """Return the lines that the kernel log has now; None: this user may not read it.

    Args:
        path: the kernel log.
        most_s: stop after this long.
    """
    tail = Tail(path, from_the_start=True)
    lines = tail.lines(most_s) if tail.readable else None
    tail.close()
    return lines


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
