"""The page of the settings has every setting with its meaning, default and limits, as the schema has them."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from ftslurm.config import setting_names
from ftslurm.config.schema import (
    ClusterConfig,
    Config,
    Fault,
    GroupsConfig,
    HookConfig,
    JobConfig,
    Range,
    StopConfig,
)

MADE = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "settings.py"))


def test_every_setting_has_a_row_with_a_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \| (.+) \| (.*) \|$", MADE["page"](), re.MULTILINE)
    entries = [name for one in (Range, Fault, HookConfig) for name in one.__dataclass_fields__]
    assert sorted(key for key, *_ in rows) == sorted([*setting_names.every_key(), *entries])
    assert [key for key, *_, meaning in rows if not meaning.strip()] == []


def test_a_value_is_described_by_its_choices_or_its_type_and_limits() -> None:
    def value(section: type, name: str) -> str:
        (field,) = (one for one in fields(section) if one.name == name)
        return str(MADE["value"](field, get_type_hints(section)[name]))

    assert value(ClusterConfig, "controller") == "`job`, `here`"
    assert value(GroupsConfig, "workers") == "whole number, at least 1, at most 1000"
    assert value(StopConfig, "grace_s") == "number, at least 0"
    assert value(JobConfig, "env") == "mapping to text"
    assert value(GroupsConfig, "gpus") == "whole number, at least 0"


def test_what_the_program_notes_for_itself_is_no_setting() -> None:
    assert "internal" in {field.name for field in fields(Config)}
    assert not any(key.startswith("internal") for key in setting_names.every_key())
    for text in (MADE["page"](), MADE["table"](Config, "", {"follow"})):
        assert "requeues" not in text


def test_what_is_no_markup_does_not_become_markup() -> None:
    assert MADE["plain"]("[a|b], *.bin, `x*y`, <z>") == r"[a\|b], \*.bin, `x*y`, \<z>"
