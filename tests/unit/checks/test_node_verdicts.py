"""What was measured on a node and in the shared folder becomes findings; each trouble is found with its fix."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from ftslurm import __version__
from ftslurm.checks.finding import Finding, Level
from ftslurm.checks.gpu_readings import GpuReading
from ftslurm.checks.node_facts import Facts, FolderFacts, Hardware, NodeFacts, read_facts
from ftslurm.checks.node_verdicts import check_node, check_reach

XID = "[{}.5] NVRM: Xid (PCI:0000:3b:00): {}, pid=7"
GPU = GpuReading(0, "GPU-a", "NVIDIA A100-SXM4-80GB", "550.54.15", 4, ecc=0)
RANGES = {"torch": ">=2.8,<2.16", "torchft": ">=0.2,<0.3"}
HARDWARE = Hardware(4, (GPU, replace(GPU, index=1, ecc=None)), [], 400_000.0)
IMPORTS: dict[str, dict[str, Any]] = {
    "torch": {"version": "2.13.0+cu128", "seconds": 3.0, "build": "CUDA 12.8", "devices": 4},
    "torchft": {"version": "0.2.0", "seconds": 1.0},
    "ftslurm": {"version": __version__, "seconds": 0.1},
}
FACTS = Facts(
    *(HARDWARE, 4, "/opt/python", "3.11.7", IMPORTS, "10.0.0.1", {"eth0": "10.0.0.1"}, (), 28232, 1024, 64),
)
FOLDER = FolderFacts("/runs", True, 0.01, True, 0.002, 0.01)
NODE = NodeFacts("n1", "7", 1.0, folder=FOLDER, facts=FACTS, ahead_s=-0.01, tried={"step": "", "sbatch": ""})


def judged(node: NodeFacts) -> list[Finding]:
    return list(check_node(node, RANGES, True))


def bad(node: NodeFacts) -> list[tuple[str, Level]]:
    findings = judged(node)
    assert all(finding.fix for finding in findings if finding.level is not Level.OK)
    assert all(finding.what.startswith("n1: ") for finding in findings)
    return [(finding.check, finding.level) for finding in findings if finding.level is not Level.OK]


def with_facts(**changes: Any) -> NodeFacts:
    return replace(NODE, facts=replace(FACTS, **changes))


def with_hardware(**changes: Any) -> NodeFacts:
    return with_facts(hardware=replace(HARDWARE, **changes))


def test_a_good_node_has_no_complaint() -> None:
    assert bad(NODE) == []


def test_facts_are_the_same_after_their_way_through_the_pipe() -> None:
    for facts in (FACTS, replace(FACTS, hardware=replace(HARDWARE, readings="Failed to initialize NVML", kernel=None))):
        told = json.loads(json.dumps(asdict(facts)))
        assert asdict(read_facts(told)) == told
    assert bad(replace(NODE, facts=read_facts(json.loads(json.dumps(asdict(FACTS)))))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"readings": (replace(GPU, ecc=3),)}, ("memory", Level.FAIL)),
        ({"readings": (GPU, replace(GPU, index=1, problem="GPU is lost"))}, ("gpus", Level.FAIL)),
        ({"readings": "Failed to initialize NVML"}, ("gpus", Level.FAIL)),
        ({"kernel": [XID.format(399_000, 79), XID.format(399_000, 31)]}, ("kernel", Level.FAIL)),
    ],
)
def test_broken_hardware_is_found(changes: dict[str, Any], expected: tuple[str, Level]) -> None:
    assert bad(with_hardware(**changes)) == [expected]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"address": "127.0.1.1"}, ("network", Level.WARN)),
        ({"address": "127.0.1.1", "interfaces": {}}, ("network", Level.FAIL)),
        ({"infiniband": ["mlx5_0"]}, ("memlock", Level.WARN)),
        ({"ports": 100}, ("ports", Level.FAIL)),
        ({"files": 256}, ("files", Level.WARN)),
    ],
)
def test_a_trouble_of_a_node_is_found(changes: dict[str, Any], expected: tuple[str, Level]) -> None:
    assert bad(with_facts(**changes)) == [expected]


def test_a_node_that_hides_its_log_and_has_no_gpus_has_no_complaint() -> None:
    hidden = with_hardware(kernel=None, readings=None, gpus=0)
    assert bad(hidden) == []
    assert [one.what for one in judged(hidden) if one.check == "kernel"] == [
        "n1: the kernel log may not be read by this user: not checked"
    ]


@pytest.mark.parametrize(
    ("name", "found", "level"),
    [
        ("torch", {"error": "No module named 'torch'"}, Level.FAIL),
        ("torch", {"version": "2.7.1", "seconds": 3.0, "build": "CUDA 12.8", "devices": 4}, Level.WARN),
        ("torch", {"version": "2.16.0.dev20261026+cu128", "seconds": 3.0, "build": "CUDA", "devices": 4}, Level.WARN),
        ("torch", {"version": "2.15.0.dev20261026", "seconds": 3.0, "build": "CUDA", "devices": 4}, None),
        ("torchft", {"version": "0.2.0", "seconds": 60.0}, Level.WARN),
        ("torchft", {"version": "", "seconds": 1.0}, Level.WARN),
        ("torchft", {"version": "of our own", "seconds": 1.0}, Level.WARN),
        ("ftslurm", {"version": "0.0.9", "seconds": 0.1}, Level.FAIL),
    ],
)
def test_an_import_that_fails_or_differs_is_found(name: str, found: dict[str, Any], level: Level | None) -> None:
    assert bad(with_facts(imports=IMPORTS | {name: found})) == ([(name, level)] if level else [])


def test_gpus_that_torch_does_not_see_are_found() -> None:
    def torch(version: str, build: str, **more: object) -> dict[str, Any]:
        made = {"version": version, "seconds": 3.0, "build": build, "devices": 0, **more}
        return {"imports": IMPORTS | {"torch": made}}

    cpu, rocm = torch("2.13.0+cpu", ""), torch("2.13.0+rocm6.4", "ROCm 6.4")
    none = replace(HARDWARE, gpus=0, readings=None)
    for here in ({}, {"hardware": none}):  # of NVIDIA, or of a kind that only Slurm knows
        blind = with_facts(**cpu, **here)
        assert bad(blind) == [("cuda", Level.WARN)]
        (told,) = [one for one in judged(blind) if one.level is Level.WARN]
        assert "it has 4 GPUs, and torch 2.13.0+cpu is a CPU build" in told.what
        assert "pip install --force-reinstall torch --index-url" in told.fix
    assert bad(with_facts(**cpu, hardware=none, slurm_gpus=0)) == []
    assert bad(with_facts(**torch("2.13.0+rocm6.4", "ROCm 6.4", devices=4), hardware=none)) == []
    blind = with_facts(**rocm, hardware=none)
    assert [one.what for one in judged(blind) if one.check == "cuda"] == [
        "n1: it has 4 GPUs, and torch 2.13.0+rocm6.4 for ROCm 6.4 sees none of them"
    ]
    broken = torch("2.13.0+cu128", "CUDA 12.8", devices=4, cuda_error="CUDA error: no kernel image")
    assert bad(with_facts(**broken)) == [("cuda", Level.FAIL)]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (NodeFacts("n1", problem="its job has not started within 6 s"), ("job", Level.FAIL)),
        (NodeFacts("n1", problem="ModuleNotFoundError: No module named 'ftslurm'"), ("ftslurm", Level.FAIL)),
        (NodeFacts("n1", problem="ImportError: No module named 'ftslurm.checks'; Exited"), ("ftslurm", Level.FAIL)),
        (NodeFacts("n1", "7", 1.0, "no answer within 400 s"), ("node", Level.FAIL)),
    ],
)
def test_a_node_that_says_nothing_or_lacks_ftslurm_is_one_finding(node: NodeFacts, expected: tuple[str, Level]) -> None:
    assert bad(node) == [expected]


def test_a_node_behind_a_firewall_fails() -> None:
    (closed,) = check_reach(replace(NODE, reached={"n2": "TimeoutError: timed out"}))
    assert (closed.check, closed.level) == ("ports", Level.FAIL)
    assert "n1 cannot connect to a free port of n2: TimeoutError" in closed.what
    assert closed.fix


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shared": False}, [("folder", Level.FAIL)]),
        ({"problem": "no space"}, [("folder", Level.FAIL)]),
        ({"size_s": 31.0}, [("caching", Level.WARN)]),
        ({"size_s": None}, [("caching", Level.WARN)]),
        ({"exclusive": False}, [("folder", Level.FAIL)]),
        ({"fsync_s": 0.5}, [("latency", Level.WARN)]),
        ({}, []),
    ],
)
def test_a_trouble_of_the_shared_folder_is_found(change: dict[str, Any], expected: list[tuple[str, Level]]) -> None:
    assert bad(replace(NODE, folder=replace(FOLDER, **change))) == expected


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0.3, Level.OK), (-3.0, Level.WARN), (3.0, Level.WARN), (400.0, Level.FAIL)]
)
def test_a_clock_that_differs_is_found(ahead_s: float, level: Level) -> None:
    (found,) = [one for one in judged(replace(NODE, ahead_s=ahead_s)) if one.check == "clock"]
    assert found.level is level
    assert f"{ahead_s:+.3f} s" in found.what
    here = judged(replace(NODE, job="", ahead_s=ahead_s))
    assert not [one for one in here if one.check == "clock"]
