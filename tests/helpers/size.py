"""How much there is of ftslurm, beside what budget.toml allows: `python tests/helpers/size.py`.

With --lower, each number of budget.toml that is higher than today's becomes today's. It never raises one.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

from ftslurm.cli.verbs import VERBS
from ftslurm.config import setting_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # a dependency of pytest

Numbers = dict[tuple[str, str], int]  # by table and key of budget.toml

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "budget.toml"
TEXTS = ("README.md", "CHANGELOG.md", "docs/*.md", "ftslurm/report/page.*")
OUTSIDE = "*.py"  # the files of ftslurm/ that are in no folder of it
ROOM = 0.02  # a number may be higher than today's by this part
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Python 3.12 and later divide an f-string into tokens; here it is one, as before.
BEGIN, END = getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None)


def tokens(text: str) -> int:
    """Return the number of tokens of code. Comments, docstrings and layout are none, and a string is one."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DESCRIBED)]
    docstrings = {node.body[0].lineno for node in nodes if ast.get_docstring(node, clean=False) is not None}
    found = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += (token.type == BEGIN) - (token.type == END)
        docstring = token.type == tokenize.STRING and token.start[0] in docstrings
        found += depth == 0 and token.type not in LAYOUT and not docstring
    return found


def today(root: Path = ROOT) -> Numbers:
    """Return the numbers of today, as budget.toml has them."""
    package = root / "ftslurm"
    files = sorted(package.rglob("*.py"))
    folders = Counter[str]()
    for path in files:
        inside = path.relative_to(package).parts
        folders[inside[0] if len(inside) > 1 else OUTSIDE] += tokens(path.read_text())
    totals = {
        "tokens": folders.total(),
        "files": len(files),
        "settings": len(setting_names.every_key()),
        "verbs": len(VERBS),
    }
    words = {name: sum(len(path.read_text().split()) for path in root.glob(name)) for name in TEXTS}
    tables = {"package": totals, "words": words, "tokens": dict(folders)}
    return {(table, key): number for table, numbers in tables.items() for key, number in numbers.items()}


def allowed(text: str) -> Numbers:
    """Return the numbers of a budget.toml."""
    tables = tomllib.loads(text)
    return {(table, key): number for table, numbers in tables.items() for key, number in numbers.items()}


def names(table: str, key: str) -> tuple[str, str]:
    """Return what a number counts: where, and the unit."""
    return {"package": ("ftslurm", key), "tokens": (f"ftslurm/{key}", "tokens")}.get(table, (key, table))


def problems(now: Numbers, budget: Numbers) -> list[str]:
    """Return what is above its budget, far below it, or has none, and the lines of the budget that count nothing."""
    found = []
    for (table, key), number in now.items():
        where, unit = names(table, key)
        most = budget.get((table, key))
        if most is None:
            found.append(f"{where}: no budget: add {key} = {number} below [{table}] in budget.toml")
        elif number > most:
            found.append(
                f"{where}: {number:,} {unit}, {number - most:,} above its budget of {most:,}: delete as much elsewhere "
                "in it, or raise the number in budget.toml with a reason on its line"
            )
        elif number < (1 - ROOM) * most:
            found.append(f"{where}: only {number:,} of {most:,} {unit}: python tests/helpers/size.py --lower")
    gone = [one for one in budget if one not in now]
    return found + [f"budget.toml: there is no {names(*one)[0]}: remove {one[1]} from [{one[0]}]" for one in gone]


def lowered(text: str, now: Numbers) -> str:
    """Return a budget.toml without the room that is left: numbers above today's become today's."""
    table, lines = "", []
    for line in text.splitlines(keepends=True):
        if head := re.match(r"\[(\w+)\]", line):
            table = head[1]
        elif entry := re.match(r'"?([^"=\s]+)"? = (\d+)', line):
            least = min(int(entry[2]), now.get((table, entry[1]), int(entry[2])))
            line = f"{line[: entry.start(2)]}{least}{line[entry.end(2) :]}"
        lines.append(line)
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="lower the numbers of budget.toml to today's")
    lower = parser.parse_args().lower
    now = today()
    if lower:
        BUDGET.write_text(lowered(BUDGET.read_text(), now))
    budget = allowed(BUDGET.read_text())
    for one, number in now.items():
        where, unit = names(*one)
        print(f"{where:<24} {number:>9,} of {budget.get(one, 0):>9,} {unit}")
    for line in problems(now, budget):
        print(line)


if __name__ == "__main__":
    main()
