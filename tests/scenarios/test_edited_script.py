"""A file of the training is edited while the run goes on: every attempt runs the code of the submission."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from harness import SLURM_BY_DAY, Backend, Run

pytestmark = pytest.mark.light

SCRIPT = """
import os, sys, time
import factors
print("pid", os.getpid(), flush=True)
print("loss times", FACTOR * factors.OTHER, os.path.basename(__file__), os.getcwd(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def project(folder: Path) -> Path:
    """Make a script that imports a module of the same tree from another folder; return its path."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/factors.py").write_text("OTHER = 1\n")
    (folder / "train.py").write_text("FACTOR = 1" + SCRIPT)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder / "train.py"


def edit(folder: Path) -> None:
    (folder / "train.py").write_text("FACTOR = 100" + SCRIPT)
    (folder / "lib/factors.py").write_text("OTHER = 100\n")


def start(backend: Backend, script: Path, *words: str) -> Run:
    run = backend.start(
        *("groups.count=2", "lighthouse=none", "job.snapshot=auto"),
        *(f"job.args=['{backend.tmp_path}/end']", f"job.env.PYTHONPATH='{script.parent}/lib'", *words),
        script=script,
    )
    run.until(lambda: all("loss times" in run.rank_log(group) for group in range(2)), "the scripts run")
    return run


@SLURM_BY_DAY
def test_a_relaunched_group_runs_the_code_of_the_submission_unless_told_otherwise(backend: Backend) -> None:
    script = project(backend.tmp_path / "project")
    run = start(backend, script)
    edit(script.parent)
    run.kill(0)
    run.until(lambda: "loss times" in run.rank_log(0, attempt=1), "the next attempt runs")
    first, later = (run.rank_log(0, attempt=attempt).partition("loss times")[2].splitlines()[0] for attempt in (0, 1))
    assert first == later == f" 1 train.py {backend.tmp_path}"
    assert not os.access(run.dir / "code/train.py", os.W_OK) or os.geteuid() == 0
    assert (run.dir / "code/train.py").stat().st_mode & 0o222 == 0
    (backend.tmp_path / "end").touch()
    run.finish()
