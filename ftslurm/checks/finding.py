"""What one check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial


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

    def __str__(self) -> str:
        """Return its line."""
        return f"{self.level.value:<4}  {self.check:<15} {self.what}" + (f"; fix: {self.fix}" if self.fix else "")


ok, warn, fail = (partial(Finding, level) for level in Level)
