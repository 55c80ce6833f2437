"""`ftslurm --help` and `ftslurm help`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ftslurm.cli import main


def test_the_overview_shows_every_verb_within_80_columns_and_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    assert set(main.VERBS) <= {line.split()[0] for line in lines if line.startswith("  ")}


def test_every_verb_has_its_module() -> None:
    assert all(find_spec(f"ftslurm.cli.{verb}_verb") for verb in main.VERBS)


def test_help_of_a_verb_is_the_help_of_that_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["help", "scale"])
    assert ended.value.code == 0
    assert "usage: ftslurm scale" in capsys.readouterr().out


def test_a_page_that_is_not_there_is_named_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["help", "checkpoint"]) == 2
    assert "did you mean checkpoints?" in capsys.readouterr().err
