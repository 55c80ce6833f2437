"""What was measured on a node and in the shared folder becomes findings; each trouble is found with its fix."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm.doctor.examine import required
from ftslurm.doctor.node_checks import FolderFacts, NodeFacts, check_clocks, check_folder, check_node, within
from ftslurm.preflight.finding import Finding, Level
from ftslurm.preflight.gpu_readings import GpuReading

XID = "[{}.5] NVRM: Xid (PCI:0000:3b:00): {}, pid=7"
GPU = GpuReading(0, "GPU-a", "NVIDIA A100-SXM4-80GB", "550.54.15", 4, ecc=0, celsius=31)
RANGES = {"torch": ">=2.8,<2.16", "torchft": ">=0.2,<0.3"}
SAID: dict[str, Any] = {
    "python": "/opt/python",
    "python_version": "3.11.7",
    "imports": {
        "torch": {"version": "2.13.0+cu128", "seconds": 3.0, "build": "CUDA 12.8", "devices": 4},
        "torchft": {"version": "0.2.0", "seconds": 1.0},
        "ftslurm": {"version": "0.1.0", "seconds": 0.1},
    },
    "gpu_files": 4,
    "uptime_s": 400_000.0,
    "address": "10.0.0.1",
    "interfaces": {"eth0": "10.0.0.1"},
    "infiniband": [],
    "ports": {"range": 28232, "bound": 64},
    "files": 1024,
}
FOLDER = FolderFacts("n1", "/runs", True, 0.01, 0.01, True, True, 0.002, 0.01)


def bad(findings: list[Finding]) -> list[tuple[str, Level]]:
    assert all(finding.fix for finding in findings if finding.level is not Level.OK)
    return [(finding.check, finding.level) for finding in findings if finding.level is not Level.OK]


def node(**changes: Any) -> list[Finding]:
    measured = {"gpus": (GPU, replace(GPU, index=1, ecc=None)), "kernel": ["[1.2] usb 1-1: new device"]}
    measured |= {name: changes.pop(name) for name in ("gpus", "kernel") if name in changes}
    facts = NodeFacts("n1", SAID | changes, reached={"n2": ""}, **measured)
    return list(check_node(facts, {"ftslurm": "0.1.0"}, RANGES, True))


def test_a_good_node_has_no_complaint() -> None:
    assert bad(node()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus": (replace(GPU, ecc=3),)}, ("memory", Level.FAIL)),
        ({"gpus": (GPU, replace(GPU, index=1, problem="GPU is lost"))}, ("gpus", Level.FAIL)),
        ({"gpus": (replace(GPU, slowed=("heat",)),)}, ("speed", Level.WARN)),
        ({"gpus": "Failed to initialize NVML"}, ("gpus", Level.WARN)),
        ({"kernel": [XID.format(399_000, 79), XID.format(399_000, 31)]}, ("kernel", Level.FAIL)),
        ({"kernel": [XID.format(1, 79)]}, ("kernel", Level.WARN)),
        ({"address": "127.0.1.1"}, ("network", Level.WARN)),
        ({"address": "127.0.1.1", "interfaces": {}}, ("network", Level.FAIL)),
        ({"interfaces": {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}, "address": "10.2.0.1"}, ("network", Level.WARN)),
        ({"infiniband": ["mlx5_0"], "unlimited": False, "locked_kb": 64}, ("memlock", Level.WARN)),
        ({"ports": {"range": 100, "bound": 60}}, ("ports", Level.FAIL)),
        ({"files": 256}, ("files", Level.WARN)),
    ],
)
def test_a_trouble_of_a_node_is_found(changes: dict[str, Any], expected: tuple[str, Level]) -> None:
    assert bad(node(**changes)) == [expected]


def test_a_node_that_hides_its_log_and_has_no_gpus_has_no_complaint() -> None:
    found = node(kernel=None, gpus=())
    assert bad(found) == []
    assert [one.what for one in found if one.check == "kernel"] == [
        "n1: the kernel log may not be read by this user: not checked"
    ]


@pytest.mark.parametrize(
    ("name", "found", "level"),
    [
        ("torch", {"error": "No module named 'torch'"}, Level.FAIL),
        ("torch", {"version": "2.7.1", "seconds": 3.0, "build": "CUDA 12.8", "devices": 4}, Level.WARN),
        ("torchft", {"version": "0.2.0", "seconds": 60.0}, Level.WARN),
        ("ftslurm", {"version": "0.0.9", "seconds": 0.1}, Level.FAIL),
    ],
)
def test_an_import_that_fails_or_differs_is_found(name: str, found: dict[str, Any], level: Level) -> None:
    assert (name, level) in bad(node(imports=SAID["imports"] | {name: found}))


def test_the_network_of_a_node_without_ftslurm_is_not_judged() -> None:
    lacking = {name: value for name, value in SAID.items() if name not in ("address", "interfaces")}
    found = list(check_node(NodeFacts("n1", lacking, reached={"n2": "refused"}), {}, RANGES, True))
    assert bad(found) == [("network", Level.WARN), ("ports", Level.FAIL)]


def test_gpus_that_torch_does_not_see_are_found() -> None:
    cpu = {"version": "2.13.0+cpu", "seconds": 3.0, "build": "", "devices": 0}
    for here in ({"gpu_files": 4}, {"gpu_files": 0, "gpus": (), "other_gpus": 4}):  # of NVIDIA, or of another kind
        found = node(imports=SAID["imports"] | {"torch": cpu}, **here)
        assert bad(found) == [("cuda", Level.WARN)]
        (told,) = [one for one in found if one.level is Level.WARN]
        assert told.what.startswith("n1 has 4 GPUs, and torch 2.13.0+cpu is a CPU build")
        assert "pip install --force-reinstall torch --index-url" in told.fix
    assert bad(node(imports=SAID["imports"] | {"torch": cpu}, gpu_files=0, gpus=())) == []
    rocm = cpu | {"version": "2.13.0+rocm6.4", "build": "ROCm 6.4"}
    amd = {"gpu_files": 0, "gpus": (), "other_gpus": 4}
    assert bad(node(imports=SAID["imports"] | {"torch": rocm | {"devices": 4}}, **amd)) == []
    blind = node(imports=SAID["imports"] | {"torch": rocm}, **amd)
    assert [one.what for one in blind if one.check == "cuda"] == [
        "n1 has 4 GPUs, and torch 2.13.0+rocm6.4 for ROCm 6.4 sees none of them"
    ]
    broken = SAID["imports"]["torch"] | {"cuda_error": "CUDA error: no kernel image"}
    assert bad(node(imports=SAID["imports"] | {"torch": broken})) == [("cuda", Level.FAIL)]


def test_a_node_behind_a_firewall_and_one_that_is_silent_fail() -> None:
    closed = NodeFacts("n1", SAID, reached={"n2": "TimeoutError: timed out"})
    assert bad(list(check_node(closed, {}, RANGES, True))) == [("ports", Level.FAIL)]
    silent = NodeFacts("n1", problem="no answer within 60 s")
    assert bad(list(check_node(silent, {}, RANGES, True))) == [("node", Level.FAIL)]


def test_an_answer_without_any_fact_raises_nothing() -> None:
    assert list(check_node(NodeFacts("n1"), {}, RANGES, True))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shared": False}, [("folder", Level.FAIL)]),
        ({"problem": "no space"}, [("folder", Level.FAIL)]),
        ({"listing_s": 31.0}, [("caching", Level.WARN)]),
        ({"listing_s": None, "size_s": None}, [("caching", Level.WARN), ("caching", Level.WARN)]),
        ({"exclusive": False}, [("locking", Level.FAIL)]),
        ({"locks": False}, [("locking", Level.WARN)]),
        ({"locks": None}, [("locking", Level.WARN)]),
        ({"fsync_s": 0.5}, [("latency", Level.WARN)]),
        ({}, []),
    ],
)
def test_a_trouble_of_the_shared_folder_is_found(change: dict[str, Any], expected: list[tuple[str, Level]]) -> None:
    assert bad(list(check_folder(replace(FOLDER, **change), 40.0))) == expected


@pytest.mark.parametrize(("ahead", "level"), [(0.3, Level.OK), (-3.0, Level.WARN), (400.0, Level.FAIL)])
def test_clocks_that_differ_are_found(ahead: float, level: Level) -> None:
    (finding,) = check_clocks([NodeFacts("n1", ahead_s=0.0, error_s=0.01), NodeFacts("n2", ahead_s=ahead)])
    assert finding.level is level
    assert f"n2 {ahead:+.3f} s" in finding.what


def test_a_version_is_compared_by_its_numbers() -> None:
    assert within("2.14.1+cpu", ">=2.8,<2.15")
    assert within("2.8.0", "<2.15,>=2.8")
    assert not within("2.15.0", ">=2.8,<2.15")
    assert not within("2.7.1", ">=2.8,<2.15")
    assert within("1", "")


def test_the_ranges_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    for name, found in required().items():
        (said,) = re.findall(rf'"{name}([<>][^"]*)"', text)
        assert sorted(said.split(",")) == sorted(found.split(","))
    assert required().keys() == RANGES.keys()
