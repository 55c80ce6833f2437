"""A script gets the words that were typed, through the command line, a run's files and resume."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ftslurm.cli.main import main

pytestmark = pytest.mark.light

SCRIPT = """import json, os, sys
from pathlib import Path
print(json.dumps([sys.argv[1:], {name: value for name, value in os.environ.items() if name.startswith("T_")}]))
"""
WORDS = [
    *("--version", "1.10", "--commit", "12e4567", "2024_01_02", "true", "null", "~", "yes", "0x10", "010", ".5", "1e6"),
    *(
        "12:00:00",
        "trainer.lr=0.1",
        "--lr=1e-3",
        "log/epoch=999-step=87999.ckpt",
        "it's",
        "a b ",
        "",
        "a\nb",
        "C:\\new\\",
    ),
    *('"q"', "[1,2]", "{a: b}", "a,b", "${HOME}", "$HOME", "`id`", "%j", "#x", "ü\u2028\x85", "--", "-h", "--help"),
]


def printed(root: Path) -> list[object]:
    """Return what the script of the newest run has printed: its words, and its variables."""
    (log,) = max(root.iterdir(), key=os.path.getmtime).glob("logs/*/*/rank-0.log")
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("[[")]
    found: list[object] = json.loads(line)
    return found


def test_words_arrive_as_they_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script, root = tmp_path / "show.py", tmp_path / "runs"
    script.write_text(SCRIPT)
    how = ("cluster=local", "groups.count=1", "groups.gpus=0", "lighthouse=none", f"job.script={script}")
    words = [*WORDS, "{RANK}", "\\{RANK}", "\\\\{RANK}", "{RANKS}", "\\{RANKS}"]
    filled = [*WORDS, "0", "{RANK}", "\\0", "{RANKS}", "\\{RANKS}"]
    variables = {"T_FLAG": "true", "T_V": "1.10", "T_HCA": "mlx5_0:1,mlx5_1:1", "T_N": "", "T_B": "\\n", "T_S": " a "}
    given = [f"job.env.{name}={value}" for name, value in variables.items()]
    assert main([*how, *given, "--", *words]) == 0
    assert printed(root) == [filled, variables]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    capsys.readouterr()
    assert main(["resume", "--from-scratch", "job.args.1=1.20", "--root", str(root)]) == 0
    filled[1] = "1.20"
    assert printed(root) == [filled, variables]
    assert "PYTHONPATH is not as it was for script-" in capsys.readouterr().err
