"""The permitted names of jobs, steps and nodes."""

from __future__ import annotations

import pytest

from ftslurm.security.names import is_job, is_node, is_step

NEVER: list[object] = ["", " ", "-1", "--me", "81;", "81\n", "../81", "a b", "²", None, 81, True, ["81"], "8" * 300]


@pytest.mark.parametrize("name", ["81", "81_2", "4711_0"])
def test_a_job(name: str) -> None:
    assert is_job(name)


@pytest.mark.parametrize("name", ["81.0", "81_2.14", "81+1.0", "81.0+1", "4294967.4294967290"])
def test_a_step(name: str) -> None:
    assert is_step(name)


@pytest.mark.parametrize("name", ["n1", "gpu-07.cluster.example", "local0", "node_3", "_x", "7"])
def test_a_node(name: str) -> None:
    assert is_node(name)


@pytest.mark.parametrize("name", [*NEVER, "81.", ".0", "81_", "81_[1-3]", "81_2_3", "all", "81.0.0", "81.batch,82"])
def test_no_job_and_no_step(name: object) -> None:
    assert not is_job(name)
    assert not is_step(name)


@pytest.mark.parametrize("name", [*NEVER, "n[1-3]", "n1,n2", "n1/x", "x" * 256])
def test_no_node(name: object) -> None:
    assert not is_node(name)
