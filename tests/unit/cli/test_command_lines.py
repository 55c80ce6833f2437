"""A script, or the command line of another launcher, leads to settings that give the script the same arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.cli import command_line
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import script_arguments
from ftslurm.errors import EnvironmentProblem

MEANT = "to train with it: ftslurm "


def meant(*words: str) -> list[str]:
    """Return the words of the command that is named."""
    with pytest.raises(EnvironmentProblem) as refused:
        command_line.refuse(words)
    return shlex.split(str(refused.value).partition(MEANT)[2].partition("; groups.count=N says")[0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train.py --lr 0.1", """job.script=train.py 'job.args=["--lr","0.1"]'"""),
        ("python -u train.py --amp", """job.script=train.py 'job.args=["--amp"]'"""),
        ("torchrun --nproc-per-node 8 a/train.py x", """job.script=a/train.py 'job.args=["x"]'"""),
        ("/opt/env/bin/python3.12 -m pkg.train", "job.script=SCRIPT"),
        ("groups.count=3 train.py groups.nodes=2", "job.script=train.py groups.count=3 groups.nodes=2"),
        ("torchrun --nnodes 2 job.script=train.py", "job.script=train.py"),
        ("train.py lr=0.1", """job.script=train.py 'job.args=["lr=0.1"]'"""),
    ],
)
@pytest.mark.parametrize("verb", ["", "run ", "plan "])
def test_it_leads_to_the_settings(verb: str, line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(verb + line)) == 2
    told = capsys.readouterr().err
    assert told.partition(MEANT)[2].partition("; groups.count=N")[0].rstrip("\n") == said
    assert told.count("\n") == 1


def test_a_script_without_an_ending_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").touch()
    assert meant("train") == ["job.script=train"]
    command_line.refuse(["trian"])  # no file: main has an error for that


@pytest.mark.parametrize("line", ["job=ddp", "--config runs/x/config.yaml", "-m job=ddp", "~faults", "--help", ""])
def test_words_of_ftslurm_are_left_alone(line: str) -> None:
    command_line.refuse(shlex.split(line))


ODD = (
    *(
        "0.1",
        "1e-3",
        "-1",
        "1_000",
        "true",
        "null",
        "${x}",
        "\\${x}",
        '"',
        "\\",
        '\\"',
        "a,b",
        "[1",
        "{RANK}",
        "it's",
        "a b",
    ),
    *(
        "",
        " ",
        "=",
        "a=b",
        "#",
        "~",
        "é",
        "0x1",
        "nan",
        "-x",
        "--a=-b",
        "--a=",
        "--a.b=1",
        "--7",
        "--",
        "groups",
    ),
)
WORDS = st.one_of(
    st.text(max_size=8).filter(lambda text: "\0" not in text and text.isprintable()),
    st.from_regex(r"--[a-z]{1,3}([.-][a-z]{1,2})?(=[ -~]{0,4})?", fullmatch=True),
    st.sampled_from(ODD),
)


def check(arguments: list[str]) -> None:
    """Check that the script gets these; --a=b may come as --a b, and 1e-3 as 0.001."""
    arguments = [word for word in arguments if not command_line._is_ours(word) and "???" not in word]
    found = compose.compose(meant("train.py", *arguments))[0].job
    assert found.script == "train.py"
    assert pieces(script_arguments(found.args)) == pieces(arguments)


def pieces(words: list[str]) -> list[object]:
    """Return what a parser takes from the words."""
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return sorted(map(same, parts), key=repr)


def same(word: str) -> object:
    try:
        return float(word) if re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", word) else word
    except ValueError:
        return word


@pytest.mark.parametrize("form", ["{}", "--key|{}", "--key={}"])
def test_the_script_gets_odd_arguments_as_they_are(form: str) -> None:
    """All in one: a composition takes a second on a busy machine."""
    words = [form.replace("key", f"key-{number}").format(word) for number, word in enumerate(ODD)]
    check([part for word in words for part in word.split("|", 1)])


def test_the_script_gets_an_empty_value() -> None:
    check(["--a", "", "--b"])


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=5))
def test_the_script_gets_exactly_its_arguments(arguments: list[str]) -> None:
    check(arguments)
