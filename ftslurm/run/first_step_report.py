"""A training that takes no step (core/no_step.py): what its ranks have printed last, and how people are told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.core.state.unit_names import group_unit
from ftslurm.run.directory import RunDir
from ftslurm.security.terminal import visible

TAIL = 16_384  # bytes of a log that are looked at
LONGEST = 120  # characters of a line that are told
_ERROR = re.compile(r"\b[\w.]*(?:[Ee]rror|ERROR|Exception|Interrupt)\b(?:[:(]|$)")


def with_last_lines(fields: Mapping[str, Any], run: RunDir) -> dict[str, Any]:
    """The fields of `no_first_step` with what rank 0 of each of its groups has said last, as `last`."""
    groups = [dict(one) for one in fields["groups"]]
    for one in groups:
        one["last"] = last_line(run.rank_log(group_unit(one["group"]), one["attempt"], 0))
    return {**fields, "groups": groups}


def last_line(log: Path) -> str:
    """The newest error in the end of a log, else its last line: made harmless, at most LONGEST characters."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", _tail(log)) if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    line = (errors or lines or [""])[-1]
    return visible(line if len(line) <= LONGEST else line[: LONGEST - 3] + "...")[:LONGEST]


def _tail(log: Path) -> str:
    """The end of a file; nothing if it cannot be read, or is not a file: a script may put anything in its place."""
    with suppress(OSError):
        file = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            return os.pread(file, TAIL, max(0, size - TAIL)).decode(errors="replace")
        finally:
            os.close(file)
    return ""
