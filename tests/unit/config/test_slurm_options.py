"""Options of sbatch and srun: what a run lives on cannot be replaced, however it is written; all else is passed on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.config import slurm_options
from ftslurm.config.schema import Config, Range
from ftslurm.config.slurm_options import SBATCH, SRUN
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError

DOCS = Path(__file__).parents[3] / "docs/jobs.md"
REFUSED = sorted(name for name, why in SBATCH.items() if why)
PASSED = sorted(name for name, why in SBATCH.items() if not why)


def refused(word: str = "", **sbatch: Any) -> str:
    """Return what is said against options of sbatch, or a word for srun, of a run and of its ranges; empty: nothing."""
    said = list[str]()
    for ranged in (False, True) if sbatch else (False,):
        config = Config()
        config.job.script, config.cluster.kind = __file__, "array"
        config.cluster.srun = [word] if word else []
        config.cluster.sbatch = {} if ranged else sbatch
        config.cluster.ranges = [Range("0", sbatch=sbatch)] if ranged else []
        try:
            check(config)
            said.append("")
        except ConfigError as error:
            said.append(str(error))
    assert len(set(said)) == 1
    return said[0]


VALUES = st.sampled_from([True, "1", "60", "B:USR1@60", "TERM@60", "R:USR2", "x", "a,b", "off", ""])


@given(st.sampled_from(REFUSED), VALUES, st.booleans())
def test_an_option_that_a_run_lives_on_is_refused_with_what_to_do(name: str, value: Any, underscores: bool) -> None:
    said = refused(**{name.replace("-", "_") if underscores else name: value})
    assert said == f"cluster.sbatch.{name}: {SBATCH[name]}"


@pytest.mark.parametrize("name", slurm_options.OURS)
@pytest.mark.parametrize("value", [False, None])
def test_what_is_ours_cannot_be_taken_back_either(name: str, value: Any) -> None:
    assert refused(**{name: value})
    assert not refused(array=value)  # there is none to take back


@given(st.sampled_from(PASSED) | st.from_regex("zz[a-z-]{1,9}", fullmatch=True), VALUES)
def test_all_other_options_are_passed_on_also_those_of_a_later_slurm(name: str, value: Any) -> None:
    assert not refused(**{name: value})


@given(st.sampled_from(REFUSED), st.integers(1, 12))
def test_the_beginning_of_a_name_is_no_way_around_it(name: str, letters: int) -> None:
    """getopt takes --sig for --signal."""
    begun = name[:letters].rstrip("-")
    assert refused(**{begun: "x"}) or begun in PASSED


@pytest.mark.parametrize("value", ["a\n#SBATCH --signal=TERM@60", "a\rb", "b\n", "\x1b[2J"])
def test_a_value_that_could_begin_a_line_of_its_own_is_refused(value: Any) -> None:
    assert "an option of sbatch is one line" in refused(comment=value)


SRUN_REFUSED = sorted(name for name, why in SRUN.items() if why)


@given(st.sampled_from(SRUN_REFUSED), st.sampled_from(["", "=1", "=off"]), st.booleans())
def test_an_argument_of_srun_that_a_run_lives_on_is_refused(name: str, value: str, underscores: bool) -> None:
    word = f"--{name.replace('-', '_') if underscores else name}{value}"
    assert refused(word) == f"cluster.srun={word}: {SRUN[name]}"


SHORT = [
    "-l",
    "-u",
    "-W5",
    "-K",
    "-K0",
    "-N2",
    "-n",
    "-wn1",
    "-Q",
    "-vQ",
    "-lu",
    "-O",
    "-t5",
    "-oX",
    "-i",
    "-e/x",
    "-Z",
]


@pytest.mark.parametrize(
    "word",
    [*SHORT, "--unbuf", "--kill-on", "--sig=TERM@60", "--export=NONE", "--export=A=1", "--export", "--export=ALLES"],
)
def test_short_and_shortened_arguments_of_srun_are_refused_too(word: str) -> None:
    assert bool(refused(word)) == (word != "-O")


PLAIN = [
    "-v",
    "-c4",
    "-pgpu",
    "-Lx",
    "--mpi=pmix",
    "--container-image=x",
    "--cpu_bind=cores",
    "--export=ALL,A=1",
    "-mW",
]


@pytest.mark.parametrize("word", PLAIN)
def test_all_other_arguments_of_srun_are_passed_on(word: str) -> None:
    assert not refused(word)


@pytest.mark.parametrize("words", [["--export", "NONE"], ["-J", "x"], ["--export=ALL", "Q=1"], ["-"], ["--"]])
def test_a_word_that_srun_would_run_as_the_program_is_refused(words: list[str]) -> None:
    assert any("srun would run it as the program" in refused(word) for word in words)


@pytest.mark.parametrize("option", ["gpus", "gpus_per_task", "gpus-per-socket", "tres-per-task"])
def test_gpus_that_are_not_counted_per_node_are_refused_with_the_setting_to_use(option: str) -> None:
    assert "use groups.gpus" in refused(**{option: 2})
    assert not refused(**{"gpus-per-node": "a100:2"})
    assert not refused(gres="gpu:2")


def test_the_page_names_each_option_that_is_refused() -> None:
    section = DOCS.read_text().partition("## Options of sbatch and srun")[2].partition("\n## ")[0]
    of_sbatch, _, of_srun = section.partition("`cluster.srun`")
    for text, names in ((of_sbatch, [*REFUSED, *slurm_options.ONCE]), (of_srun, SRUN_REFUSED)):
        assert sorted(set(names) - set(re.findall(r"`([a-z-]+)`", text))) == []
