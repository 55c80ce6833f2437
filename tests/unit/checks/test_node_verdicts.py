"""What was measured on a node and in the shared folder becomes findings; each trouble is found with its fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ftslurm import __version__
from ftslurm.checks import node_verdicts
from ftslurm.checks.finding import Finding, Level

TORCH: dict[str, Any] = {"version": "2.13.0+cu128", "seconds": 3.0, "build": "CUDA 12.8", "devices": 4}
LAN = {"eth0": "10.0.0.1"}


def bad(*findings: Finding) -> list[tuple[str, Level]]:
    assert all(finding.fix for finding in findings if finding.level is not Level.OK)
    return [(finding.check, finding.level) for finding in findings if finding.level is not Level.OK]


def test_a_good_node_has_no_complaint() -> None:
    for found in (
        node_verdicts.folder("/runs", True, [0.002, 0.01]),
        node_verdicts.cuda(TORCH, 4),
        node_verdicts.locked(64, []),
        [node_verdicts.caching(0.01), node_verdicts.clock(-0.01), node_verdicts.package("torch", TORCH, __version__)],
        [node_verdicts.network("10.0.0.1", LAN, ["mlx5_0"], True)],
    ):
        assert bad(*found) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([node_verdicts.network("127.0.1.1", LAN, [], True)], ("network", Level.WARN)),
        ([node_verdicts.network("", LAN, [], True)], ("network", Level.WARN)),
        ([node_verdicts.network("127.0.1.1", LAN, [], False)], None),
        (node_verdicts.locked(64, ["mlx5_0"]), ("memlock", Level.WARN)),
        (node_verdicts.locked(None, ["mlx5_0"]), None),
    ],
)
def test_a_trouble_of_a_node_is_found(found: Iterable[Finding], expected: tuple[str, Level] | None) -> None:
    assert bad(*found) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("name", "found", "level"),
    [
        ("torch", {"error": "No module named 'torch'"}, Level.FAIL),
        ("torch", {"version": "2.15.0.dev20261026", "seconds": 3.0, "build": "CUDA", "devices": 4}, None),
        ("torchft", {"version": "0.2.0", "seconds": 60.0}, Level.WARN),
        ("torchft", {"version": "", "seconds": 1.0}, None),
        ("ftslurm", {"version": "0.0.9", "seconds": 0.1}, Level.FAIL),
        ("ftslurm", {"version": __version__, "seconds": 0.1}, None),
    ],
)
def test_an_import_that_fails_or_differs_is_found(name: str, found: dict[str, Any], level: Level | None) -> None:
    assert bad(node_verdicts.package(name, found, __version__)) == ([(name, level)] if level else [])


def test_gpus_that_torch_does_not_see_are_found() -> None:
    cpu = {"version": "2.13.0+cpu", "seconds": 3.0, "build": "", "devices": 0}
    rocm = {"version": "2.13.0+rocm6.4", "seconds": 3.0, "build": "ROCm 6.4", "devices": 0}
    (told,) = node_verdicts.cuda(cpu, 4)
    assert bad(told) == [("cuda", Level.WARN)]
    assert "it has 4 GPUs, and torch 2.13.0+cpu is a CPU build" in told.what
    assert "pip install --force-reinstall torch --index-url" in told.fix
    assert bad(*node_verdicts.cuda(cpu, 0)) == []
    assert bad(*node_verdicts.cuda(rocm | {"devices": 4}, 0)) == []
    assert [one.what for one in node_verdicts.cuda(rocm, 4)] == [
        "it has 4 GPUs, and torch 2.13.0+rocm6.4 for ROCm 6.4 sees none of them"
    ]
    broken = TORCH | {"cuda_error": "CUDA error: no kernel image"}
    assert bad(*node_verdicts.cuda(broken, 4)) == [("cuda", Level.FAIL)]
    assert bad(*node_verdicts.cuda({"error": "No module named 'torch'"}, 4)) == []


@pytest.mark.parametrize(
    ("why", "started", "check"),
    [
        ("its job has not started within 6 s", False, "job"),
        ("ModuleNotFoundError: No module named 'ftslurm'", False, "ftslurm"),
        ("ImportError: No module named 'ftslurm.checks'; Exited", False, "ftslurm"),
        ("no answer within 400 s", True, "node"),
    ],
)
def test_a_node_that_says_nothing_or_lacks_ftslurm_is_one_finding(why: str, started: bool, check: str) -> None:
    assert bad(node_verdicts.silence(why, started)) == [(check, Level.FAIL)]


def test_a_trouble_of_the_shared_folder_is_found() -> None:
    assert bad(*node_verdicts.folder("/runs", False, [0.01])) == [("folder", Level.FAIL)]
    assert bad(*node_verdicts.folder("/runs", True, [0.5, 0.6, 0.01])) == [("latency", Level.WARN)]
    assert [bad(node_verdicts.caching(seen_s)) for seen_s in (31.0, None)] == [[("caching", Level.WARN)]] * 2


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0.3, Level.OK), (-3.0, Level.WARN), (3.0, Level.WARN), (400.0, Level.FAIL)]
)
def test_a_clock_that_differs_is_found(ahead_s: float, level: Level) -> None:
    found = node_verdicts.clock(ahead_s)
    assert found.level is level
    assert f"{ahead_s:+.3f} s" in found.what
