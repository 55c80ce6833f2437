"""`make gpu` on a machine without a GPU: what can be done there is done, and the page says what is not possible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu
import gpu_nccl
import pytest
from gpu_runs import DEADLINE

KIT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def kit(page: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, KIT, "--to", page, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return page.read_text()


@pytest.mark.nightly
def test_a_check_passes_fails_or_is_not_possible_and_the_page_says_which(tmp_path: Path) -> None:
    text = kit(tmp_path / "gpu.md", "--only", "healing, http", "checkpoint", "digest", "NCCL, 100 heals")
    assert "| healing, http |" in text
    assert "## healing, http: passed" in text
    assert "so the transfer of 0.25 GB" in text
    assert "GB saved in" in text
    assert "## checkpoint: passed" in text
    for needs_one in ("digest", "NCCL, 100 heals"):
        assert f"## {needs_one}: not possible here\n\n```text\nthere is no GPU\n" in text


@pytest.mark.nightly
@pytest.mark.parametrize("check", ["NCCL, 4 groups", "NCCL, killed in a collective", "NCCL, killed in set-up"])
def test_the_checks_of_nccl_pass_with_gloo_in_its_place(tmp_path: Path, check: str) -> None:
    text = kit(tmp_path / "gpu.md", "--gloo", "--only", check)
    assert f"## {check}: passed" in text
    assert "ProcessGroupGloo between" in text
    assert "all weights as without communication" in text


@pytest.mark.nightly
def test_heals_in_a_row_leave_nothing_behind_in_the_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_nccl, "GLOO", True)
    monkeypatch.setattr(gpu_nccl, "HEALS", 24)
    monkeypatch.setattr(DEADLINE, "at", float("inf"))
    assert "descriptors" in gpu_nccl.heals(3)


def test_what_does_not_fit_into_the_time_is_told_and_done_by_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    chosen = ("--only", "binding", "healing, 80 GB")
    text = kit(page, *chosen, "--minutes=0.5")
    assert "## binding: not possible here" in text
    assert "## healing, 80 GB: no time left\n\n```text\nit takes about 240 s: `make gpu ARGS=--rest`\n" in text
    assert [one["verdict"] for one in json.loads(page.with_suffix(".json").read_text())["found"]].count(
        gpu.NO_TIME
    ) == 1
    text = kit(page, "--rest", "--only", "binding", "healing, 80 GB", "kernel log", "--minutes=0.5")
    assert "## binding: not possible here" in text, "the page keeps it"
    assert "## kernel log: " in text


def test_the_checks_have_names_of_their_own_and_an_estimate_and_those_of_nccl_come_first() -> None:
    names = [check.name for check in gpu.CHECKS]
    assert len(names) == len(set(names))
    assert all(check.about_s > 0 for check in gpu.CHECKS)
    assert all(name.startswith(("NCCL", "baby NCCL")) for name in names[:8])


def test_a_wrong_mean_or_a_step_too_many_changes_the_weights(tmp_path: Path) -> None:
    """A digest that a sum of too few groups leaves as it is would compare nothing."""
    script = """
import sys, torch, gpu_between as b
sys.argv = ["x"]
def weights(steps, groups, counted):
    model = b.Model(512)
    optimizer = b.adamw(model)
    for step in range(steps):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in counted:
            optimizer.zero_grad()
            model(step, rank, groups).backward()
            for total, p in zip(sums, model.parameters()): total += p.grad
        for total, p in zip(sums, model.parameters()): p.grad = total / groups
        optimizer.step()
    return b.digest(model)
alone = weights(5, 1, [0])
for groups in (2, 3, 4): assert weights(5, groups, range(groups)) == alone, groups
assert len({alone, weights(6, 1, [0]), weights(4, 1, [0]), weights(5, 3, [0, 1]), weights(5, 3, [0, 1, 1])}) == 5
"""
    environ: dict[str, Any] = {"PYTHONPATH": str(KIT.parent), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
