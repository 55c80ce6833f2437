"""Add the last line of each group's log to a no_first_step record."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ftslurm.core.state.unit_names import group_unit
from ftslurm.protocol.records import NoFirstStep, StuckGroup
from ftslurm.run.directory import RunDir
from ftslurm.security.terminal import visible

TAIL = 16_384  # bytes of a log that are read
LONGEST = 120  # characters of a line that are kept
_ERROR = re.compile(r"\b[\w.]*(?:[Ee]rror|ERROR|Exception|Interrupt)\b(?:[:(]|$)")


def with_last_lines(record: NoFirstStep, run: RunDir) -> NoFirstStep:
    """Return the record with `last` of each group: the last line that its rank 0 has printed."""
    groups: list[StuckGroup] = []
    for group in record.groups:
        log = run.rank_log(group_unit(group["group"]), group["attempt"], 0)
        groups.append({**group, "last": last_line(log)})
    return replace(record, groups=tuple(groups))


def last_line(log: Path) -> str:
    """Return the newest error near the end of a log, else its last line, without control characters and cut."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", _tail(log)) if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    line = (errors or lines or [""])[-1]
    return visible(line if len(line) <= LONGEST else line[: LONGEST - 3] + "...")[:LONGEST]


def _tail(log: Path) -> str:
    """Return the end of a file; empty if it cannot be read. A script may have put a link or a pipe in its place."""
    with suppress(OSError):
        file = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            return os.pread(file, TAIL, max(0, size - TAIL)).decode(errors="replace")
        finally:
            os.close(file)
    return ""
