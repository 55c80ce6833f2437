"""ftslurm does not grow unnoticed: budget.toml has what there may be of it, and tests/helpers/size.py what there is."""

from __future__ import annotations

import re

import pytest
import size

TEXT = """
[package]
verbs = 19
[tokens] # of each folder
core = 70482 # raised for jobs of several users
guard = 500
"""
NOW = {("package", "verbs"): 19, ("tokens", "core"): 70_000, ("tokens", "guard"): 600}


def test_nothing_is_above_its_budget_and_every_folder_has_one() -> None:
    found = size.problems(size.today(), size.allowed(size.BUDGET.read_text()))
    assert not found, "\n".join(found)


def test_beside_a_number_stands_only_the_reason_why_it_was_raised() -> None:
    beside = re.findall(r"^\S+ = \d+\b(.+)$", size.BUDGET.read_text(), re.MULTILINE)
    assert [comment for comment in beside if not re.match(r" # raised for \w", comment)] == []


def test_a_number_above_its_budget_is_told_with_the_difference() -> None:
    now = size.allowed(TEXT) | {("tokens", "core"): 70_500, ("package", "verbs"): 20}
    what_to_do = "delete as much elsewhere in it, or raise the number in budget.toml with a reason on its line"
    assert size.problems(now, size.allowed(TEXT)) == [
        f"ftslurm: 20 verbs, 1 above its budget of 19: {what_to_do}",
        f"ftslurm/core: 70,500 tokens, 18 above its budget of 70,482: {what_to_do}",
    ]


def test_a_budget_that_nobody_has_lowered_is_told() -> None:
    now = size.allowed(TEXT) | {("tokens", "core"): 60_000}
    (told,) = size.problems(now, size.allowed(TEXT))
    assert told == "ftslurm/core: only 60,000 of 70,482 tokens: python tests/helpers/size.py --lower"


def test_a_folder_without_a_line_and_a_line_without_a_folder_are_told() -> None:
    old, new = {("tokens", "old"): 7}, {("tokens", "new"): 7}
    assert size.problems(new, old) == [
        "ftslurm/new: no budget: add new = 7 below [tokens] in budget.toml",
        "budget.toml: there is no ftslurm/old: remove old from [tokens]",
    ]


def test_numbers_go_down_to_those_of_today_and_never_up() -> None:
    assert size.lowered(TEXT, NOW) == TEXT.replace("70482", "70000")
    assert size.lowered('"docs/*.md" = 9\n', {("", "docs/*.md"): 8}) == '"docs/*.md" = 8\n'


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("x = 1  # one", "x = 1"),
        ('"""A module."""\nx = 1', "x = 1"),
        ('class A:\n    """A class."""\n    x = 1', "class A:\n    x = 1"),
        ('async def f():\n    """A\n\n    function."""\n    return 1', "async def f():\n    return 1"),
        ("x = f(\n    1,\n\n    2\n)", "x = f(1, 2)"),
        ('x = f"{a + b} and {c!r:>{width}}"', 'x = "text"'),
    ],
)
def test_comments_docstrings_layout_and_what_is_in_a_string_do_not_count(more: str, less: str) -> None:
    assert size.tokens(more) == size.tokens(less)


def test_a_longer_line_saves_nothing() -> None:
    assert size.tokens("a = 1\nb = 2") == 6
    assert size.tokens("a = 1; b = 2") == 7
    assert size.tokens("if a:\n    b()") == size.tokens("if a: b()") == 6


def test_a_string_that_is_no_docstring_counts() -> None:
    assert size.tokens('x = 1\n"text"') == 4
