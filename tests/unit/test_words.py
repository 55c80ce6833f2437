"""Counts, names and durations are said in one room: ftslurm/words.py. Nothing else has a form of its own for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ftslurm
from ftslurm import words

ROOT = Path(ftslurm.__file__).parent
TREES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "words.py"
}


def is_text(node: ast.AST) -> bool:
    """Return whether this is a text with a word, or the end of one."""
    text = "".join(str(one.value) for one in ast.walk(node) if isinstance(one, ast.Constant))
    kind = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    return kind and (text in ("", "s") or re.search("[a-z]{2}", text) is not None)


def has_one(node: ast.expr) -> bool:
    """Return whether a condition compares a count with one."""
    compared = [*node.comparators, node.left] if isinstance(node, ast.Compare) else []
    return any(isinstance(side, ast.Constant) and side.value == 1 and side.value is not True for side in compared)


def chosen_by_count(node: ast.AST) -> bool:
    """Whether a text is chosen by whether there is one: "it" if count == 1 else "them", "s" * (count != 1)."""
    if isinstance(node, ast.IfExp):
        start = "(start " in ast.unparse(node)  # an ordinal number
        return has_one(node.test) and is_text(node.body) and is_text(node.orelse) and not start
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and is_text(node.left) and has_one(node.right)


def suggestion(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any("difflib" in name for name in (getattr(node, "module", None) or "", *(a.name for a in node.names)))
    return False


def asked(node: ast.AST) -> bool:
    """Whether a text asks what is meant."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
    return any("did you mean " in str(part.value) for part in [first] if isinstance(part, ast.Constant))


def joined(node: ast.AST) -> bool:
    """Whether names become a list with a word before the last: " and ".join(names)."""
    found = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join"
    return found and re.fullmatch(r" (and|or) ", str(getattr(node.func.value, "value", ""))) is not None  # type: ignore[attr-defined]


def parts(node: ast.JoinedStr) -> Iterator[tuple[str, ast.expr, str]]:
    """Generate the values of an f-string, each with the text before and after it."""
    texts = ["" if isinstance(one, ast.FormattedValue) else str(getattr(one, "value", "")) for one in node.values]
    for n, one in enumerate(node.values):
        if isinstance(one, ast.FormattedValue):
            yield texts[n - 1] if n else "", one.value, texts[n + 1] if n + 1 < len(texts) else ""


def counted_rest(node: ast.AST) -> bool:
    """Whether a text says how many more there are: f"and {len(names) - 3} more"."""
    return isinstance(node, ast.JoinedStr) and any(
        before.endswith("and ")
        and (after.startswith(" more") or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub)))
        for before, value, after in parts(node)
    )


def duration(node: ast.AST) -> bool:
    """Whether a text divides a duration into hours or minutes by itself."""
    return isinstance(node, ast.JoinedStr) and any(
        re.match(r" (min|h|d)\b", after) and isinstance(value, ast.BinOp) for _, value, after in parts(node)
    )


KINDS = (chosen_by_count, suggestion, asked, joined, counted_rest, duration)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_has_a_form_of_its_own(kind: object) -> None:
    assert callable(kind)
    found = [f"{file}:{node.lineno}" for file, tree in TREES.items() for node in ast.walk(tree) if kind(node)]  # type: ignore[attr-defined]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (chosen_by_count, "'file' if len(found) == 1 else f'{n} files'"),
        (chosen_by_count, "'are' if 1 < n else 'is'"),
        (chosen_by_count, "f'{n} GPU' + 's' * (n != 1)"),
        (suggestion, "from difflib import get_close_matches"),
        (asked, "f'did you mean {near[0]}?'"),
        (joined, "' or '.join(names)"),
        (counted_rest, "f'{a}, and {len(names) - 3} others'"),
        (counted_rest, "f'{named}; and {more} more'"),
        (duration, "f'{whole // 3600} h {whole % 60} min'"),
    ],
)
def test_the_kinds_find_forms_that_nobody_has_listed(kind: object, text: str) -> None:
    assert callable(kind)
    assert any(kind(node) for node in ast.walk(ast.parse(text)))


def test_numbers_and_lists() -> None:
    assert [words.plural(n, "group") for n in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]
    assert [words.listed("abc"[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert [words.few("abcde"[:n]) for n in (0, 1, 4, 5)] == ["no node", "a", "a, b, c, d", "a, b, c and 2 more"]
    assert words.spans([5, 1, 0, 2]) == "0-2, 5"


def test_a_duration_in_its_largest_unit() -> None:
    assert [words.about(s) for s in (-3, 45, 119, 120, 7199, 7200, 172_799, 172_800)] == [
        *("0 s", "45 s", "119 s", "2 min", "2 h", "2 h", "2 d", "2 d"),
    ]


def test_what_is_meant() -> None:
    assert words.offer("KILL9", ["kill", "term"]) == "did you mean kill? There are: kill, term"
    assert words.offer("x", ["kill", "term"]) == "there are: kill, term"
    assert words.meant("a") == "did you mean a?"
