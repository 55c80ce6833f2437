"""Prints lines of logs: which are left out, what stands before each, and nothing in them that steers a terminal."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import BinaryIO

from ftslurm.monitor.log_files import LogFile
from ftslurm.run import log_noise
from ftslurm.security.terminal import LogText

_LONGEST = 1 << 16  # bytes of a line by which it is judged


@dataclass(frozen=True)
class View:
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
    """The output of `logs`. Takes the logs in pieces, and prints whole lines unless told otherwise."""

    def __init__(self, out: BinaryIO, view: View, labels: bool) -> None:
        """Begin. `labels`: print group, attempt and rank before each line."""
        self.out, self.view, self.labels = out, view, labels
        self.left_out = 0  # lines of known noise
        self._text = LogText(view.colours)
        self._prefix = b""
        self._rest = b""  # the beginning of a line that has not been judged yet
        self._shown: bool | None = None  # whether the line that has begun is printed; None: not judged yet

    def write(self, log: LogFile, when: float, data: bytes, final: bool = False) -> None:
        """Print the next bytes of a log. `final`: what another log has comes next."""
        self._prefix = self.prefix(log, when)
        self._take(self._text.feed(data, final))
        if final and self._has_begun():
            self._end_line(b"")

    def lines(self, log: LogFile, when: float, lines: list[bytes]) -> None:
        """Print lines as `pick` has returned them."""
        self._prefix = self.prefix(log, when)
        self._print(lines)

    def pick(self, data: bytes) -> list[bytes]:
        """Return whole lines of a log, made safe, without those that the view leaves out."""
        lines = LogText(self.view.colours).feed(data, final=True).split(b"\n")
        return self._picked(lines[:-1] if not lines[-1] else lines)

    def prefix(self, log: LogFile, when: float) -> bytes:
        """Return what stands before a line."""
        parts = ([clock(when)] if self.view.times else []) + ([log.label] if self.labels else [])
        return f"[{' '.join(parts)}] ".encode() if parts else b""

    def show_begun(self) -> None:
        """Print what there is of a line that has no end yet, unless it must be searched first."""
        if self._rest and self.view.grep is None:
            self._judge()

    def close(self) -> None:
        """Print what is left, an incomplete last line."""
        self._take(self._text.feed(b"", final=True))
        if self._rest:
            self._judge()
        if self._shown and (self.labels or self.view.times):
            self.out.write(b"\n")
        self.out.flush()

    def _take(self, safe: bytes) -> None:
        *lines, rest = safe.split(b"\n")
        if lines and self._has_begun():
            self._end_line(lines.pop(0))
        self._print(self._picked(lines))
        if rest:
            self._begin_line(rest)

    def _print(self, lines: list[bytes]) -> None:
        if lines:
            self.out.write(self._prefix + (b"\n" + self._prefix).join(lines) + b"\n")

    def _has_begun(self) -> bool:
        """Return whether the last line that was written has no end yet."""
        return bool(self._rest) or self._shown is not None

    def _picked(self, lines: list[bytes]) -> list[bytes]:
        if not self.view.raw and log_noise.may_be_in(lines):
            told = [line for line in lines if not log_noise.is_noise(line)]
            self.left_out += len(lines) - len(told)
            lines = told
        return lines if self.view.grep is None else [line for line in lines if self.view.grep.search(line)]

    def _begin_line(self, part: bytes) -> None:
        if self._shown is not None:
            self.out.write(part if self._shown else b"")
            return
        self._rest += part
        if len(self._rest) > _LONGEST:
            self._judge()

    def _judge(self) -> None:
        self._shown = bool(self._picked([self._rest]))
        self.out.write(self._prefix + self._rest if self._shown else b"")
        self._rest = b""

    def _end_line(self, part: bytes) -> None:
        self._rest += part
        if self._shown is None:
            self._judge()
        elif self._shown:
            self.out.write(self._rest)
        self.out.write(b"\n" if self._shown else b"")
        self._rest, self._shown = b"", None


def clock(when: float) -> str:
    """Return a time for a prefix; on another day than today with the day."""
    local = time.localtime(when)
    today = time.strftime("%Y%m%d") == time.strftime("%Y%m%d", local)
    return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M:%S", local)
