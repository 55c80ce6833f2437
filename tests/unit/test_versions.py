"""The versions that ftslurm asks for, that CI installs, and that were tried."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from versions import MATRIX, SLURM_TESTS, TESTS, requirements

from ftslurm.worker import patch_fit

ROOT = Path(__file__).parents[2]
DECLARED = {one.name: one for one in map(Requirement, requirements((ROOT / "pyproject.toml").read_text(), []))}


@pytest.mark.nightly
def test_a_tensor_becomes_an_array_of_numpy() -> None:
    import torch

    assert torch.ones(1).numpy().tolist() == [1.0]


def test_what_ci_installs_is_in_the_declared_ranges() -> None:
    own, _, _ = (ROOT / "constraints.txt").read_text().partition("# What those need")
    lines = [line for line in own.splitlines() if not line.startswith("#")]
    pinned = {one.name: one.specifier for one in map(Requirement, lines)}
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    declared = DECLARED | {one.name: one for one in map(Requirement, re.findall(r'"([^"]+)"', extras))}
    assert pinned.keys() <= declared.keys()
    for name, specifier in pinned.items():
        assert declared[name].specifier.contains(str(specifier).removeprefix("==")), name


def test_what_is_installed_is_in_the_declared_ranges() -> None:
    for name in ("torch", "torchft", "protobuf", "numpy"):
        version = importlib.metadata.version(name)
        assert DECLARED[name].specifier.contains(version.partition("+")[0]), name


def test_the_ends_of_the_range_of_torch_were_tried_and_are_named_in_errors() -> None:
    bounds = {one.operator: one.version for one in DECLARED["torch"].specifier}
    tried = re.findall(r"^\| (2\.\d+)\.\d+ \|.*\| passed \|", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE)
    numbers = sorted(int(version.partition(".")[2]) for version in tried)
    assert bounds == {">=": f"2.{numbers[0]}", "<": f"2.{numbers[-1] + 1}"}
    assert f"torch 2.{numbers[0]} to 2.{numbers[-1]}" in patch_fit.TRIED


def test_each_slurm_of_the_matrix_was_tried_and_what_runs_there_exists() -> None:
    told = (ROOT / "docs" / "versions.md").read_text()
    for row in MATRIX:
        if row.release:
            series = re.escape(row.name.removeprefix("slurm-"))
            assert re.search(rf"^\|.*\| {series}\.\d+ \| passed \| \d+ passed", told, re.MULTILINE), row.name
    assert [path for path in (*TESTS, *SLURM_TESTS) if not (ROOT / path).exists()] == []


def test_a_named_version_takes_the_place_of_what_is_declared() -> None:
    declared = 'dependencies = [\n    "torch>=2.8,<2.15", # why\n    "torchft>=0.2",\n]\n'
    declared += 'examples = ["wandb"]\ntest = ["ftslurm[examples]", "pytest>=8"] # x\n'
    assert requirements(declared, ["torch==2.7.1"]) == ["torch==2.7.1", "torchft>=0.2", "pytest>=8"]
    assert requirements(declared, ["torchft-nightly==1"]) == ["torchft-nightly==1", "torch>=2.8,<2.15", "pytest>=8"]
    with pytest.raises(SystemExit, match="names no package"):
        requirements(declared, ["==1"])


def test_python_3_10_can_read_the_annotations() -> None:
    """typing.get_type_hints of Python 3.10 refuses an annotation that is a bare ClassVar."""
    bare = re.compile(r": ClassVar\s*(=|$)", re.MULTILINE)
    found = [str(path) for path in (ROOT / "ftslurm").rglob("*.py") if bare.search(path.read_text())]
    assert not found, f"{found}: write ClassVar[str]"
