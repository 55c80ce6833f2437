"""`run --help` has the settings that people use, `help settings` every setting; both come from the schema."""

from __future__ import annotations

import pytest

from ftslurm.cli import settings_help
from ftslurm.cli.main import main
from ftslurm.cli.verbs import VERBS
from ftslurm.config import setting_names
from ftslurm.config.described import described


@pytest.mark.parametrize("words", [["run", "--help"], ["job=ddp", "-h"], ["plan", "--help"], ["help", "plan"]])
def test_the_help_is_that_of_the_verb_with_a_line_for_each_common_setting(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    told = capsys.readouterr().out
    verb = "plan" if "plan" in words else "run"
    assert told.startswith(f"usage: ftslurm {verb} ")
    assert f"\n\n{VERBS[verb].about}\n" in told
    lines = told.partition("settings, as key=value")[2].splitlines()[1:]
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert [name.partition("=")[0] for name in shown] == list(settings_help.FIRST)
    assert len(settings_help.FIRST) == 25
    assert all(shown.values())


def test_the_help_of_a_section_has_exactly_its_settings_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert {one.key for one in described()} == set(setting_names.every_key())
    for section in {one.key.partition(".")[0] for one in described()}:
        assert main(["help", "settings", section]) == 0
        told = capsys.readouterr().out
        heads = [line.split("=")[0].split()[0] for line in told.splitlines() if line[:1].strip()]
        assert heads == [one.key for one in described() if f"{one.key}.".startswith(f"{section}.")]
        words = " ".join(told.split())
        assert all(" ".join(one.meaning.split()) in words for one in described() if one.key in heads)


@pytest.mark.parametrize(("word", "said"), [("group.count", "groups.count"), ("groups.cuont", "groups.count")])
def test_a_section_or_setting_with_a_slip_leads_to_the_nearest(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", "settings", word]) == 2
    assert f"there is no setting {word}; did you mean {said}?" in capsys.readouterr().err
