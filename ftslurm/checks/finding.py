"""What one check has found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum


class Level(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What one check has found, and what mends it ("" if nothing needs mending)."""

    level: Level
    check: str
    what: str
    fix: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(Level.OK, check, what)


def warn(check: str, what: str, fix: str) -> Finding:
    return Finding(Level.WARN, check, what, fix)


def fail(check: str, what: str, fix: str) -> Finding:
    return Finding(Level.FAIL, check, what, fix)


def rows(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Return findings for JSON."""
    return [asdict(one) for one in findings]
