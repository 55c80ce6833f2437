"""The names of units, as the journal, paths and environments have them."""

from __future__ import annotations

from functools import cache

LIGHTHOUSE = "lighthouse"
STANDBY = "standby"
GROUP = "group"


@cache
def group_unit(group: int) -> str:
    """Return the unit name of a replica group: 3 -> "group-0003"."""
    return f"{GROUP}-{group:04d}"


@cache
def standby_unit(index: int) -> str:
    """Return the unit name of a warm standby: 0 -> "standby-000". With standby.count=each it has its group's number."""
    return f"{STANDBY}-{index:03d}"


def standby_number(name: str) -> int:
    """Return the number of a warm standby: "standby-012" -> 12."""
    return int(name.removeprefix(f"{STANDBY}-"))
