"""docs/settings.md has every setting with its meaning, default and limits, as the schema has them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ftslurm.config import overrides
from ftslurm.config.schema import Fault, Range

DOCS = Path(__file__).parents[3] / "docs"
MADE = runpy.run_path(str(DOCS / "settings.py"))


def test_every_setting_has_a_row_with_a_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \| (.+) \| (.*) \|$", (DOCS / "settings.md").read_text(), re.MULTILINE)
    entries = [name for one in (Range, Fault) for name in one.__dataclass_fields__]
    assert sorted(key for key, *_ in rows) == sorted([*overrides.keys(), *entries])
    assert [key for key, *_, meaning in rows if not meaning.strip()] == []


def test_a_value_is_described_by_its_choices_or_its_type_and_limits() -> None:
    value = MADE["value"]
    assert value("restart.policy", str) == "`on_failure`, `never`"
    assert value("groups.workers", int) == "whole number, at least 1, at most 1000"
    assert value("stop.grace_s", float) == "number, at least 0"
    assert value("job.env", dict[str, str]) == "mapping to text"
    assert value("groups.gpus", int | None) == "whole number, at least 0"


def test_what_is_no_markup_does_not_become_markup() -> None:
    assert MADE["plain"]("[a|b], *.bin, `x*y`, <z>") == r"[a\|b], \*.bin, `x*y`, \<z>"
