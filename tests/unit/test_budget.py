"""ftslurm does not grow unnoticed: budget.toml has what there may be of it, and tests/helpers/size.py what there is."""

from __future__ import annotations

import pytest
import size


def test_nothing_is_above_its_budget() -> None:
    allowed = size.tomllib.loads(size.BUDGET.read_text())
    now = size.today()
    assert now.keys() == allowed.keys()
    above = {name: (number, allowed[name]) for name, number in now.items() if number > allowed[name]}
    assert not above, "delete as much elsewhere, or raise the number in budget.toml and say in the commit why"


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
