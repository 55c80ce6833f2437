"""The loop of docs/scripts.md that chooses values with Optuna, as it is written there, on a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import Backend

import ftslurm
from ftslurm.api import listing

pytestmark = [pytest.mark.slurm, pytest.mark.parametrize("backend", ["slurm"], indirect=True)]

PAGE = Path(__file__).parents[2] / "docs/scripts.md"
SCRIPT = """
import os, sys
lr = float(sys.argv[sys.argv.index("--lr") + 1])
if lr > 5e-3:
    sys.exit("diverged")
with open(os.environ["FTSLURM_RESULT"], "w") as file:
    print(lr, file=file)
"""


@pytest.mark.nightly  # needs optuna
def test_optuna_asks_for_runs_and_is_told_their_values(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (loop,) = re.findall(r"```python\n(import ftslurm\nimport optuna.*?)```", PAGE.read_text(), re.DOTALL)
    script, root = backend.script(SCRIPT), backend.tmp_path / "runs0"
    more = ["cluster=slurm", "lighthouse=none", f"run.root={root}", "groups.count=1", "groups.gpus=0", "restart=never"]
    for name, value in backend.environ.items():
        monkeypatch.setenv(name, value)
    submit = ftslurm.submit
    monkeypatch.setattr(ftslurm, "submit", lambda words: submit([f"job.script={script}", words[1], *more]))
    exec(loop.replace("range(5)", "range(1)"), {})
    rows = listing.under(root)
    assert len(rows) == 4
    assert {one.state for one in rows} <= {"succeeded", "failed"}
    (found, best) = re.findall(r"^{'lr': (\S+)} (\S+)$", capsys.readouterr().out, re.MULTILINE)[-1]
    assert float(found) == float(best) <= 5e-3
