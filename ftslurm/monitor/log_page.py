"""Prints lines of logs: which are left out, what stands before each, and nothing in them that steers a terminal."""

from __future__ import annotations

import re
import time
from typing import BinaryIO

from ftslurm.monitor.log_files import LogFile
from ftslurm.protocol.value_class import Value
from ftslurm.run.log_noise import is_noise
from ftslurm.security.terminal import log_text


class View(Value):
    """How logs are shown.

    Attributes:
        times: print the time before each line.
        since: leave out what was written before this time (unix seconds).
        tail: print only so many lines of what there is; None: all.
        grep: print only lines in which this is found.
        raw: print the known noise, too (run/log_noise.py).
        colours: keep the script's colour codes. All other control sequences are printed as text.
    """

    times: bool = False
    since: float = 0.0
    tail: int | None = None
    grep: re.Pattern[bytes] | None = None
    raw: bool = False
    colours: bool = False


class Page:
    """The output of `logs`, in whole lines."""

    def __init__(self, out: BinaryIO, view: View, labels: bool) -> None:
        """Begin. `labels`: print group, attempt and rank before each line."""
        self.out, self.view, self.labels = out, view, labels
        self.left_out = 0  # lines of known noise

    def write(self, log: LogFile, when: float, lines: list[bytes]) -> None:
        """Print lines as `pick` has returned them."""
        parts = ([clock(when)] if self.view.times else []) + ([log.label] if self.labels else [])
        prefix = f"[{' '.join(parts)}] ".encode() if parts else b""
        self.out.write(b"".join(prefix + line + b"\n" for line in lines))

    def pick(self, data: bytes) -> list[bytes]:
        """Return whole lines of a log, made safe, without those that the view leaves out."""
        lines = log_text(data, self.view.colours).split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        if not self.view.raw:
            told = [line for line in lines if not is_noise(line)]
            self.left_out += len(lines) - len(told)
            lines = told
        return lines if self.view.grep is None else [line for line in lines if self.view.grep.search(line)]


def clock(when: float) -> str:
    """Return a time for a prefix."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(when))
