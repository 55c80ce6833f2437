"""`make gpu` on a machine without a GPU: what can be done there is done, and the page says what is not possible."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.nightly
def test_a_check_passes_fails_or_is_not_possible_and_the_page_says_which(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    checks = ["healing, http", "checkpoint", "digest", "NCCL"]
    done = subprocess.run([sys.executable, KIT, "--to", page, "--only", *checks], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text()
    assert "| healing, http |" in text
    assert "## healing, http: passed" in text
    assert "GB saved in" in text
    assert "## checkpoint: passed" in text
    for needs_one in ("digest", "NCCL"):
        assert f"## {needs_one}: not possible here\n\n```text\nthere is no GPU\n" in text
