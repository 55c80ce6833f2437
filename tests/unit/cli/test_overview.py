"""`ftslurm --help` and `ftslurm help`."""

from __future__ import annotations

from importlib.util import find_spec
from inspect import signature

import pytest

from ftslurm.api.run import Run
from ftslurm.cli import main
from ftslurm.cli.verbs import VERBS, Verb, parser_of


def test_the_overview_shows_every_verb_within_80_columns_and_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    assert set(VERBS) <= {line.split()[0] for line in lines if line.startswith("  ")}


@pytest.mark.parametrize(
    ("word", "meant"),
    [("statsu", "status"), ("LIST", "list")],
)
def test_a_verb_that_is_not_there_is_named_with_the_one_that_does_it(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([word, "x"]) == 2
    assert f"there is no verb '{word}'; did you mean {meant}? There are: run, " in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_has_its_module_or_a_method_that_takes_its_arguments(verb: Verb) -> None:
    if not verb.method:
        assert find_spec(f"ftslurm.cli.{verb.name}_verb")
        return
    assert not find_spec(f"ftslurm.cli.{verb.name}_verb")
    given = {action.dest for action in parser_of(verb)._actions} - {"help", "run", "root"}
    signature(getattr(Run, verb.method)).bind(None, **dict.fromkeys(given))


def test_help_of_a_verb_is_the_help_of_that_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["help", "scale"])
    assert ended.value.code == 0
    assert "usage: ftslurm scale" in capsys.readouterr().out


def test_a_page_that_is_not_there_is_named_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["help", "checkpoint"]) == 2
    assert "did you mean checkpoints?" in capsys.readouterr().err


def test_the_version_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ftslurm {main.__version__}\n"


def test_a_script_is_no_verb_and_leads_to_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["train.py"]) == 2
    assert "To train with a script: ftslurm job.script=train.py " in capsys.readouterr().err
