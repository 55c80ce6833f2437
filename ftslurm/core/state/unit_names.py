"""The names of what a run consists of, in the journal, in paths and in environments."""

from __future__ import annotations

from functools import cache

LIGHTHOUSE = "lighthouse"
STANDBY = "standby"
GROUP = "group"
LOCAL_ALLOCATION = "local"  # the name of the nodes of a local run, which are all this machine


@cache
def group_unit(group: int) -> str:
    """The unit name of a replica group: 3 -> "group-0003"."""
    return f"{GROUP}-{group:04d}"


def standby_unit(index: int) -> str:
    """The unit name of a warm standby: 0 -> "standby-000"."""
    return f"{STANDBY}-{index:03d}"
