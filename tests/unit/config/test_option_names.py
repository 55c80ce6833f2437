"""Which option is likely by one that does not exist."""

from __future__ import annotations

import pytest

from ftslurm.config.option_names import likely, unclear

NAMES = ("-f", "--follow", "--config-dir", "--config-name", "--json")


def test_an_option_that_could_be_several_is_unclear_and_all_of_them_are_named() -> None:
    assert unclear(["x=3", "--config", "X"], NAMES) == "--config=X"
    assert likely("--config", NAMES) == " (did you mean --config-dir or --config-name?)"


def test_an_option_with_a_slip_is_unclear_and_the_nearest_is_named() -> None:
    assert unclear(["--jsn=3"], NAMES) == "--jsn=3"
    assert likely("--jsn", NAMES) == " (did you mean --json?)"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--lr", "0.1"], "--lr=0.1"),
        (["--lr=0.1", "x"], "--lr=0.1"),
        (["--lr", "groups.count=2"], "--lr"),
        (["--lr", "--json"], "--lr"),
        (["--lr"], "--lr"),
    ],
)
def test_the_word_after_an_unclear_option_is_its_value(words: list[str], found: str) -> None:
    assert unclear(words, NAMES) == found


def test_nothing_is_named_where_no_option_is_near() -> None:
    assert unclear(["--frobnicate"], NAMES) == "--frobnicate"
    assert likely("--frobnicate", NAMES) == ""


def test_options_their_beginnings_and_words_after_two_dashes_are_clear() -> None:
    assert unclear(["-f", "--json", "--fol", "a--b", "--", "--config"], NAMES) is None
