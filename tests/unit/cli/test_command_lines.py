"""A script, or the command line of another launcher, leads to the settings that are meant."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ftslurm.cli import command_line
from ftslurm.cli.main import main
from ftslurm.errors import EnvironmentProblem

MEANT = "to train with it: ftslurm job.script="


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("train.py --lr 0.1", "train.py"),
        ("python -u 'my train.py' --amp", "'my train.py'"),
        ("torchrun --nproc-per-node 8 a/train.py x", "a/train.py"),
        ("/opt/env/bin/python3.12 -m pkg.train", "SCRIPT"),
        ("groups.count=3 train.py groups.nodes=2", "train.py"),
        ("train.py lr=0.1", "train.py"),
    ],
)
@pytest.mark.parametrize("verb", ["", "run ", "plan "])
def test_it_leads_to_the_settings(verb: str, line: str, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(verb + line)) == 2
    told = capsys.readouterr().err
    assert told.partition(MEANT)[2].startswith(f"{script} 'job.args=[")
    assert told.count("\n") == 1


def test_a_script_without_an_ending_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").touch()
    with pytest.raises(EnvironmentProblem, match=r"job\.script=train "):
        command_line.refuse(["train"])
    command_line.refuse(["trian"])  # no file: main has an error for that


@pytest.mark.parametrize("line", ["job=ddp", "--config runs/x/config.yaml", "-m job=ddp", "~faults", "--help", ""])
def test_words_of_ftslurm_are_left_alone(line: str) -> None:
    command_line.refuse(shlex.split(line))
