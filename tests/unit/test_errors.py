"""What is said in the script's process never raises there, whatever stderr is."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ftslurm
from ftslurm.errors import complain


def closed() -> TextIO:
    stream = open(os.devnull, "w")  # noqa: SIM115
    stream.close()
    return stream


def without_a_descriptor() -> TextIO:
    stream = open(os.devnull, "w")  # noqa: SIM115
    os.close(stream.fileno())
    return stream


def without_a_reader() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


STREAMS: dict[str, Callable[[], object]] = {
    "full": lambda: Path("/dev/full").open("w"),  # noqa: SIM115
    "closed": closed,
    "without a descriptor": without_a_descriptor,
    "a pipe that nobody reads": without_a_reader,
    "none": lambda: None,
    "no stream": object,
    "of ASCII": lambda: Path(os.devnull).open("w", encoding="ascii"),  # noqa: SIM115
}


@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_complaint_never_raises(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", STREAMS[form]())
    complain("the disk is full: ü")


@given(st.sampled_from([kind for kind in Exception.__subclasses__() if kind.__module__ == "builtins"]))
def test_a_complaint_never_raises_what_a_stream_of_the_script_raises(kind: type[Exception]) -> None:
    class Stream:
        def write(self, _: str) -> None:
            raise kind(*range(5)) if issubclass(kind, UnicodeError) else kind

    before, sys.stderr = sys.stderr, Stream()  # type: ignore[assignment]
    try:
        complain("hello")
    finally:
        sys.stderr = before


def unprotected(tree: ast.AST, protected: bool = False) -> list[str]:
    """Return the calls that print, outside of `with suppress(Exception)`."""
    found = []
    if isinstance(tree, ast.Call) and not protected:
        name = ast.unparse(tree.func)
        found = [name] if name == "print" or "print_exc" in name or "excepthook" in name else []
    if isinstance(tree, ast.With):
        protected |= any("suppress(Exception)" in ast.unparse(item) for item in tree.items)
    return found + [one for child in ast.iter_child_nodes(tree) for one in unprotected(child, protected)]


@pytest.mark.parametrize("folder", ["worker", "tracking"])
def test_in_the_scripts_process_nothing_is_printed_where_it_could_raise(folder: str) -> None:
    assert unprotected(ast.parse("with suppress(OSError):\n  print(1)")) == ["print"]
    for path in (Path(ftslurm.__file__).parent / folder).glob("*.py"):
        assert unprotected(ast.parse(path.read_text())) == [], path
