"""Jobs, keepers and files of the version before name modules that have moved: the names of then still work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.worker import titan, torchtitan


@pytest.mark.parametrize(
    ("earlier", "now", "words", "code"),
    [
        ("entry", "submission.entry", ["controller"], 2),
        ("entry", "submission.entry", ["pilot"], 2),
        ("beside", "submission.controller_process", ["1", "1"], 1),  # process 1 is not the parent
    ],
)
def test_a_command_of_the_version_before_does_what_the_command_of_now_does(
    tmp_path: Path, earlier: str, now: str, words: list[str], code: int
) -> None:
    run = str(tmp_path / "run")
    arguments = [*words, run] if earlier == "entry" else [run, *words]
    then, today = (
        subprocess.run(
            [sys.executable, "-m", f"ftslurm.{module}", *arguments], capture_output=True, text=True, timeout=60
        )
        for module in (earlier, now)
    )
    assert (then.returncode, then.stderr) == (code, today.stderr) == (today.returncode, then.stderr)
    assert "Traceback" not in then.stderr


def test_the_torchtitan_preset_of_the_version_before_runs_the_trainer_of_now() -> None:
    assert titan.main is torchtitan.main
