"""A training that takes no step (core/no_step.py): what its ranks have printed last, and how people are told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.core.state.unit_names import group_unit
from ftslurm.protocol.stages import Stage
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, integer, number, text
from ftslurm.security.terminal import visible

TAIL = 16_384  # bytes of a log that are looked at
LONGEST = 120  # characters of a line that are told
GROUPS_TOLD = 3  # in the line that people read; the journal has more
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


def sentence(event: Event) -> str:
    """What people read of a `no_first_step`."""
    told = event.get("groups")
    groups = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    each = [_group(one) for one in groups[:GROUPS_TOLD]]
    if len(groups) > GROUPS_TOLD:
        each.append(f"and {len(groups) - GROUPS_TOLD} more: see the logs")
    after = f"{number(event, 'seconds') or 0:.0f} s after all scripts had begun"
    return f"no step has been committed {after}: {text(event, 'reason') or 'unknown'}" + "".join(f"; {w}" for w in each)


def _group(one: Event) -> str:
    at, last = integer(one, "stage"), text(one, "last")
    doing = f"is {Stage(at).doing}" if at in tuple(Stage) else "has not asked for a quorum"
    return f"group {one.get('group')} {doing}" + (f', its last line: "{last}"' if last else "")
