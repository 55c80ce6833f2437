"""How much there is of ftslurm, beside what budget.toml allows: `python tests/helpers/size.py`."""

from __future__ import annotations

import ast
import io
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

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "budget.toml"
OUTSIDE = "*.py"  # the files of ftslurm/ that are in no folder of it
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


def by_folder(root: Path) -> Counter[str]:
    """Return the tokens of each folder below `root`."""
    found = Counter[str]()
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        found[inside[0] if len(inside) > 1 else OUTSIDE] += tokens(path.read_text())
    return found


def today(root: Path = ROOT) -> dict[str, int]:
    """Return the numbers of today, as budget.toml has them."""
    return {
        "package": by_folder(root / "ftslurm").total(),
        "tests": by_folder(root / "tests").total(),
        "settings": len(setting_names.every_key()),
        "verbs": len(VERBS),
    }


def main() -> None:
    budget = tomllib.loads(BUDGET.read_text())
    for name, number in today().items():
        print(f"{name:<10} {number:>9,} of {budget[name]:>9,}")
    for name, number in by_folder(ROOT / "ftslurm").most_common():
        print(f"  {name:<12} {number:>9,}")


if __name__ == "__main__":
    main()
