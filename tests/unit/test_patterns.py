"""No pattern of ftslurm takes long on a long line, whoever has written it: logs, names and answers are of strangers."""

from __future__ import annotations

import importlib
import pkgutil
import re
import string
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ftslurm

LENGTH = 16_384  # bytes of a log that are looked at
LONGEST_S = 1.0
READS = {"search": "search", "findall": "search", "finditer": "search", "sub": "search", "split": "search"}
READS |= {"match": "match", "fullmatch": "fullmatch"}
CELLS = [
    *string.punctuation,
    *"a0A \t\n\u00e9",
    "a.",
    "a:",
    "| ",
    " |",
    "||  ",
    "a_",
    "0,",
    "x=",
    "a/",
    "Error",
    "\x1b[",
]
LINES = [cell * (LENGTH // len(cell)) + end for cell in CELLS for end in ("", "!", "\n")]
SOURCES = "".join(path.read_text() for path in Path(ftslurm.__path__[0]).rglob("*.py"))


def reads() -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield each pattern that a module of ftslurm has compiled, with the ways in which it is used."""
    for found in pkgutil.walk_packages(ftslurm.__path__, "ftslurm."):
        if found.name.endswith("__main__") or found.name.startswith("ftslurm.frameworks."):  # which may be missing
            continue
        for name, value in vars(importlib.import_module(found.name)).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                for way in sorted({READS[one] for one in re.findall(rf"\b{name}\.(\w+)\b", SOURCES) if one in READS}):
                    yield pytest.param(value, way, id=f"{found.name}.{name}.{way}")


@pytest.mark.parametrize(("pattern", "way"), [*reads()])
def test_a_long_line_is_read_at_once(pattern: re.Pattern[str], way: str) -> None:
    for line in LINES:
        before = time.process_time()
        getattr(pattern, way)(line)
        assert time.process_time() - before < LONGEST_S, f"{line[:20]!r}..."
