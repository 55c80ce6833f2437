"""Descriptors are waited for whatever their number is."""

from __future__ import annotations

import ast
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ftslurm
from ftslurm.protocol.readiness import readable, writable

HIGH = 2000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose ends have high numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * HIGH)), hard))
    ends = os.pipe()
    high = (HIGH, HIGH + 1)
    for end, number in zip(ends, high, strict=True):
        os.dup2(end, number, inheritable=False)
        os.close(end)
    yield high
    for number in high:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pipe_with_high_numbers(pipe: tuple[int, int]) -> None:
    out, into = pipe
    began = time.monotonic()
    assert not readable(out)
    assert not readable(out, -1.0)  # a deadline that has passed
    assert time.monotonic() - began < 1
    assert not readable(out, 0.2)
    assert time.monotonic() - began >= 0.2
    assert writable(into)
    os.set_blocking(into, False)
    while writable(into):
        os.write(into, bytes(4096))
    assert readable(out, 10)


def test_an_end_counts_as_ready() -> None:
    out, into = os.pipe()
    os.close(into)
    assert readable(out, 10)
    os.close(out)
    out, into = os.pipe()
    os.close(out)
    assert writable(into, 10)
    os.close(into)


def test_no_module_has_a_call_that_refuses_high_numbers() -> None:
    for path in Path(ftslurm.__file__).parent.rglob("*.py"):
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "select.select" not in calls, path
        assert not any(call.endswith("SelectSelector") for call in calls), path
