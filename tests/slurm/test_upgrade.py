"""A run keeps the ftslurm with which it was started: whatever happens to the installed one meanwhile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import Backend, Run

import ftslurm
from ftslurm.security import programs

pytestmark = [pytest.mark.slurm, pytest.mark.light]
PACKAGE = Path(ftslurm.__file__).parent


@pytest.fixture
def installed(slurm: Backend) -> Path:
    """Install a copy of ftslurm for all processes of the test; return its folder."""
    folder = slurm.tmp_path / "site-packages"
    for name in ("ftslurm", "conf"):
        shutil.copytree(PACKAGE.parent / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    slurm.environ["PYTHONPATH"] = str(folder)
    return folder


def upgrade(folder: Path) -> None:
    """Replace it in place by one that can read and say nothing of what the one before has written and said."""
    changes = {
        "ftslurm/__init__.py": (r'__version__ = ".*"', '__version__ = "99.0"'),
        "ftslurm/config/schema.py": (r"\bmax_per_group\b", "most_per_group"),
        "ftslurm/protocol/messages.py": (r'kind="', 'kind="new_'),
        "ftslurm/run/journal_lines.py": (r"\Z", "\n\ndef read(*_):\n    raise ValueError('another format')\n"),
        "ftslurm/guard/guard.py": (r"^", "raise ImportError('an upgrade')\n"),
        "ftslurm/worker/session.py": (r"^", "raise ImportError('an upgrade')\n"),
    }
    for name, (old, new) in changes.items():
        path = folder / name
        path.write_text(re.sub(old, new, path.read_text(), count=0 if old != "^" else 1))


@pytest.mark.parametrize("mode", ["slurm", "array"])
def test_an_upgrade_in_place_changes_nothing_for_a_run(mode: str, slurm: Backend, installed: Path) -> None:
    settings = (f"cluster.kind={mode}", "groups.count=2", "restart.max_per_group=5")
    run = slurm.start(*settings, args={"open-end": True, "step-time": 0.1})
    run.wait_until_back(0, 1, attempt=0)
    upgrade(installed)
    run.kill(1)
    run.wait_until_back(1)
    leader = run.named("run_started")[-1]["leader"]
    run.kill_controller()
    run.until(lambda: run.named("run_started")[-1]["leader"] != leader, "the next controller")
    run.kill(0)
    run.wait_until_back(0)
    check_commands(run)
    code, said = run.ask("stop")
    assert code == 0, said
    run.finish(1, "stopped")


def check_commands(run: Run) -> None:
    """Check that the run's own ftslurm answers, and that the other one says so once."""
    for words in (("status",), ("status", "--json"), ("report",), ("logs", "--group", "1"), ("events",)):
        code, said = run.ask(*words)
        assert code == 0, said
        assert said.count("keeps its own copy of ftslurm") == 1, said
        assert f"ftslurm {ftslurm.__version__}" in said
        assert "ftslurm 99.0" in said
        assert "Traceback" not in said


@pytest.mark.nightly
def test_a_run_survives_the_removal_of_what_has_started_it(slurm: Backend, installed: Path) -> None:
    run = slurm.start("groups.count=2", args={"open-end": True, "step-time": 0.1})
    run.wait_until_back(0, 1, attempt=0)
    shutil.rmtree(installed)
    run.kill(1)
    run.kill_controller()
    run.wait_until_back(1)
    run.end_soon()
    run.finish()


def test_a_removed_copy_is_written_again_and_without_one_a_sentence_says_what_it_was(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", args={"open-end": True, "step-time": 0.1})
    run.wait_until_back(0, 1, attempt=0)
    copy = run.dir / programs.COPY
    before = copy.read_bytes()
    copy.unlink()
    run.until(copy.exists, "it is back")
    assert copy.read_bytes() == before
    run.kill(1)
    run.wait_until_back(1)
    code, said = run.ask("stop")
    assert code == 0, said
    run.finish(1, "stopped", warns=True)
    copy.unlink()
    start = programs.module("ftslurm.entry", "controller", str(run.dir), archive=str(copy))
    done = subprocess.run(start, capture_output=True, text=True)
    assert done.stderr.startswith(f"ftslurm: {copy} is gone, the run's copy of ftslurm; provenance.json")
    assert done.stderr.count("\n") == 1
    assert json.loads((run.dir / "provenance.json").read_text())["ftslurm"]["version"] == ftslurm.__version__
