"""The page of the command line has every verb with its arguments, as the parsers have them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ftslurm.cli.verbs import VERBS, parser_of

PAGE = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "cli.py"))["page"]()


@pytest.mark.parametrize("verb", VERBS)
def test_the_section_of_a_verb_has_every_option_that_its_source_has(verb: str) -> None:
    section = PAGE.partition(f"\n## ftslurm {verb}\n")[2].partition("\n## ")[0]
    assert section
    words = {name for action in parser_of(VERBS[verb])._actions for name in action.option_strings}
    names = {name for name in words if name.startswith("--")} - {"--help"}
    assert [name for name in sorted(names) if f"`{name}" not in section] == []
