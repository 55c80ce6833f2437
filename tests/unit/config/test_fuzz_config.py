"""Arbitrary overrides give a valid configuration, or one paragraph that names the setting."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from fuzz import DEEP, NUMBERS, TEXTS, VALUES, tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.cli import main
from ftslurm.cli.plan_verb import plan
from ftslurm.config import compose, typed_values
from ftslurm.config.compose import absolute
from ftslurm.config.schema import Config, Fault, Range, nodes_needed
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError, FtslurmError, RunNotFound
from ftslurm.run import find

LONG = "x" * 300
SCRIPT = str(Path(__file__).parents[2] / "scripts/toy.py")


def config() -> Config:
    made = Config()
    made.job.script, made.run.name, made.cluster.kind, made.groups.gpus = SCRIPT, "script", "local", 0
    return made


PLAIN = config()
check(absolute(copy.deepcopy(PLAIN)))


def settings(value: Any, prefix: str = "") -> dict[str, object]:
    """Return every setting, dotted, with its default."""
    found: dict[str, object] = {}
    for field in fields(value):
        inner, key = getattr(value, field.name), f"{prefix}{field.name}"
        found |= settings(inner, key + ".") if is_dataclass(inner) else {key: inner}
    return found


SETTINGS = settings(PLAIN)
FLOATS = [key for key, value in SETTINGS.items() if type(value) is float]
INTEGERS = [key for key, value in SETTINGS.items() if type(value) is int]
WORDS = [key for key, value in SETTINGS.items() if isinstance(value, str)]


def changed(**settings: object) -> Config:
    """Return the default configuration with these settings: changed(groups__count=3)."""
    made = copy.deepcopy(PLAIN)
    for key, value in settings.items():
        section, name = key.split("__")
        assert hasattr(getattr(made, section), name)
        setattr(getattr(made, section), name, value)
    return made


def judged(made: Config) -> str | None:
    """Return why a configuration is refused; None: it is valid, and its plan can be shown."""
    began = time.monotonic()
    try:
        made = typed_values.made(Config, asdict(made))  # as each configuration is made
        check(absolute(made))
        if nodes_needed(made) < 100 and made.groups.workers < 100:
            list(plan(made))
    except FtslurmError as error:
        why = str(error)
    else:
        why = None
    assert time.monotonic() - began < 10
    return why


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_no_setting_is_a_number_that_cannot_be(key: str, value: float) -> None:
    why = judged(changed(**{key.replace(".", "__"): value}))
    assert why is not None
    assert key in why


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize("value", [-1, 10**30])
def test_no_setting_is_negative_or_endless(key: str, value: int) -> None:
    why = judged(changed(**{key.replace(".", "__"): value}))
    assert why is not None
    assert key in why


@pytest.mark.parametrize("key", ["run.root", "run.dir", "checkpoint.dir", "job.script"])
@pytest.mark.parametrize("path", [f"/tmp/{LONG}/a", "/tmp/" + "y/" * 3000, "a\0b", f"{LONG}", "\ud800"])
def test_a_path_that_cannot_be_is_refused_by_its_setting(key: str, path: str) -> None:
    why = judged(changed(**{key.replace(".", "__"): path}))
    assert why is not None
    assert why.startswith(f"{key}=")
    assert len(why) < 400


def test_a_folder_that_cannot_be_looked_at_is_refused_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    made = changed(checkpoint__dir="/closed/folder")

    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", closed)
    assert str(judged(made)).startswith("checkpoint.dir=/closed/folder: must be a folder that you can read")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("job.env", {"X": "a\0b"}),
        ("job.args", ["a\0b"]),
        ("job.args", {"a\0b": 1}),
        ("cluster.setup", ["a\0b"]),
        ("cluster.srun", ["x" * 200_000]),
        ("cluster.sbatch", {"a": "a\0b"}),
        ("standby.imports", ["a\0b"]),
    ],
)
def test_a_text_that_no_command_takes_is_refused_by_its_setting(key: str, value: object) -> None:
    why = judged(changed(**{key.replace(".", "__"): value}))
    assert why is not None
    assert key in why


@pytest.mark.parametrize(
    "groups", ["2-99999999999999", "2-10000", "9" * 5000, "True", "-3", "5-2", "²", "1_0", "", "2-3-4"]
)
def test_a_range_without_an_end_or_a_sense_is_refused_at_once(groups: str) -> None:
    made = changed(cluster__kind="array", cluster__ranges=[Range(groups=groups)])
    why = judged(made)
    assert why is not None
    assert why.startswith("cluster.ranges: groups=")


@pytest.mark.parametrize("at", [math.nan, math.inf, -1.0, 1e300])
def test_a_drill_at_a_step_that_cannot_be_is_refused(at: float) -> None:
    assert "faults.plan" in str(judged(changed(faults__plan=[Fault(group=0, at=at)])))


@tried(250)
@given(
    numbers=st.dictionaries(st.sampled_from(FLOATS + INTEGERS), NUMBERS, max_size=2),
    words=st.dictionaries(st.sampled_from(WORDS), TEXTS, max_size=2),
)
def test_any_values_make_a_configuration_or_one_paragraph(numbers: dict[str, Any], words: dict[str, Any]) -> None:
    typed = {k: float(v) if k in FLOATS and abs(v) < 1e308 else v for k, v in numbers.items()}
    typed = {
        k: int(v) if k in INTEGERS and v == 0 else v for k, v in typed.items()
    }  # no file or command line makes -0.0
    judged(changed(**{key.replace(".", "__"): value for key, value in (typed | words).items()}))


@tried(120)
@given(
    key=st.sampled_from(sorted(SETTINGS)),
    value=st.one_of(
        VALUES, st.sampled_from(["{}", "[]", "{a: 1}", "[1]", "true", ".nan", "1e400", "!!python/name:x", "&a [*a]"])
    ),
)
def test_any_config_yaml_is_one_or_is_refused(key: str, value: Any, tmp_path_factory: Any) -> None:
    import yaml

    path = tmp_path_factory.mktemp("run") / "config.yaml"
    text = value if isinstance(value, str) and len(value) < 30 and value.isprintable() else yaml.safe_dump(value)
    section, _, name = key.partition(".")
    path.write_text(f"{section}:\n  {name}: {text}\n" if name else f"{section}: {text}\n", errors="replace")
    with contextlib.suppress(ConfigError):
        judged(compose.load(path))


@pytest.mark.parametrize(
    "text", ["", "a", "[1]", "- a\n- b", DEEP, "\0", "a: [", "? {a: b}\n: c", "42", "job: [1]", "[" * 1000]
)
def test_what_is_no_configuration_is_told_by_its_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    try:
        compose.load(path)
    except ConfigError as error:
        told = str(error)
    else:
        told = ""
    assert str(path) in told or text == ""


@pytest.mark.parametrize("name", [LONG, "y/" * 3000, "a\0b", "\ud800", "²", "٣", "9" * 5000, "../..", "-"])
def test_a_run_that_cannot_be_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        find.find(name, tmp_path)


@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
@pytest.mark.parametrize("words", [[LONG], ["y/" * 3000], [], ["x", "--root", LONG], ["--root", "y/" * 3000]])
def test_a_verb_on_such_a_run_says_so_in_one_paragraph(
    verb: str, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main.main([verb, *words])
    except SystemExit as refused:  # of an option
        code = refused.code
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(
        ("ftslurm: there is no run", "ftslurm: no run of yours is going", "ftslurm: --root: there is no")
    )
    assert said.count("\n") == 1


def test_a_folder_that_is_not_there_any_more_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the folder in which ftslurm is started"):
        compose.to_config(copy.deepcopy(PLAIN))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [["list"], ["status"], ["status", "x"], ["plan", "job=ddp"]])
def test_a_verb_in_such_a_folder_says_so_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code = main.main(words)
    monkeypatch.chdir(tmp_path)
    why = "the folder in which ftslurm is started cannot be used: No such file or directory; change to another one"
    assert (code, capsys.readouterr().err) == (2, f"ftslurm: {why}\n")
