"""Finds the signs of broken hardware in the kernel log.

The times in it are those of the kernel's own clock, which drifts from CLOCK_MONOTONIC by minutes within weeks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ftslurm.core.groups import hardware
from ftslurm.guard.gpus import pci
from ftslurm.guard.kernel_tail import KMSG, Tail

LONGEST = 200  # characters of a line that are kept
_KMSG = re.compile(r"^\d+,\d+,(\d+),[^;]*;(.*)$")  # level and facility, number, microseconds since the boot, flags
_DMESG = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\](?:\[[^\]]*\])?\s?(.*)$")
_GPU = re.compile(r"(?:PCI:|Xid \(|GPU (?:at )?|nvidia |amdgpu )([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")


class KernelFault(NamedTuple):
    """A line of the kernel log with a sign of broken hardware."""

    sign: hardware.Sign
    gpu: str | None  # PCI address, such as 0000:3b:00; None: the line names none
    text: str  # the kernel's words
    at: float | None  # seconds since the boot; None: the line has no such time


def parse(lines: Iterable[str], since: float | None = None) -> list[KernelFault]:
    """Return the faults in lines of the kernel log, in order.

    Args:
        lines: as /dev/kmsg, dmesg or `journalctl -k` print them.
        since: seconds since the boot; an earlier line does not count. One without such a time does.
    """
    found = []
    for line in lines:
        at, text = _split(line)
        sign = hardware.find(text)
        if sign is None or (since is not None and at is not None and at < since):
            continue
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


def _split(line: str) -> tuple[float | None, str]:
    """Return when a line was written, in seconds since the boot, and its words."""
    if match := _KMSG.match(line):
        return int(match[1]) / 1e6, match[2]
    if match := _DMESG.match(line):
        return float(match[1]), match[2]
    return None, line
