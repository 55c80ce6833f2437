"""A site's file: defaults, limits, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.cli.main import main
from ftslurm.cli.settings_help import pages
from ftslurm.config import site
from ftslurm.config.compose import compose
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError

TEXT = """\
defaults: {cluster.partition: gpu, groups.count: 3, cluster.sbatch: {qos: normal}}
most: {cluster.time: 1-00:00:00, groups.count: 8}
least: {health.lost_after_s: 5}
fixed: {logs.max_mb: 50}
words: ask hpc@example.org
controller_on_login_nodes: false
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(TEXT)
    path.chmod(0o644)
    monkeypatch.setenv("FTSLURM_SITE", str(path))
    site._read.cache_clear()
    return path


def test_its_defaults_are_those_of_each_run_and_overrides_replace_them(file: Path) -> None:
    config = compose(["groups.count=4", "cluster.sbatch.comment=x"])
    assert (config.cluster.partition, config.groups.count, config.logs.max_mb) == ("gpu", 4, 50)
    assert config.cluster.sbatch == {"qos": "normal", "comment": "x"}
    assert compose([]).groups.count == 3


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cluster.time=24:00:01", None),
        ("cluster.time=1440", None),
        ("cluster.time=1-0", None),
        ("cluster.time=25:00:00", "at most 1-00:00:00"),
        ("cluster.time=1-1", "at most 1-00:00:00"),
        ("groups.count=9", "at most 8"),
        ("health.lost_after_s=4", "at least 5"),
        ("logs.max_mb=51", "the site has set 50"),
        ("cluster.controller=here", "no controller outside of a job"),
    ],
)
def test_what_it_does_not_allow_is_refused_with_its_words(word: str, said: str | None, file: Path) -> None:
    config = compose([word, "cluster.kind=slurm"])
    if said is None:
        site.read().check(config)
        return
    with pytest.raises(ConfigError) as error:
        site.read().check(config)
    assert said in str(error.value)
    assert str(error.value).startswith(word)
    assert str(error.value).endswith(f"({file}); ask hpc@example.org")


def test_a_resumed_run_gets_only_what_is_fixed(file: Path) -> None:
    config = compose([], Config())
    assert (config.logs.max_mb, config.groups.count) == (50, Config().groups.count)


@pytest.mark.parametrize(
    "words",
    [
        "cluster.time=UNLIMITED",
        "cluster.sbatch.time=1441",
        "groups.max=9",
        "cluster.sbatch.account=other",
        "cluster.ranges=[{groups: 0-1, time: infinite}]",
        "cluster.ranges=[{groups: 0-1, account: other}]",
    ],
)
def test_no_other_setting_gets_around_it(words: str, file: Path) -> None:
    file.write_text(TEXT.replace("fixed: {", "fixed: {cluster.account: lab, "))
    site.read().check(compose(["cluster=array", "cluster.ranges=[{groups: 0-1, time: 60, sbatch: {account: lab}}]"]))
    with pytest.raises(ConfigError, match="the site"):
        site.read().check(compose(["cluster=array", words]))


def test_help_says_what_is_from_there(file: Path) -> None:
    (text,) = pages("groups.count")
    assert f"{file}: default groups.count=3, most groups.count=8" in text
    (text,) = pages("groups.min")
    assert str(file) not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults: {cluster.partitoin: x}", "cluster.partitoin"),
        ("defaults: {groups.count: many}", "groups.count=many"),
        ("most: {cluster.partition: gpu}", "cluster.partition=gpu"),
        ("most: [1]", "most"),
        ("mist: {}", "mist"),
        ("- 1", "there may be defaults"),
        ("words: a\nmost: {groups.count: 1", "line 2"),
        ("words: [a]", "words"),
        ("controller_on_login_nodes: maybe", "controller_on_login_nodes=maybe"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_its_place(
    text: str, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["run", "job.script=train.py"]) == 2
    found = capsys.readouterr().err
    assert str(file) in found
    assert said in found


def test_one_that_others_can_write_or_that_is_missing_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(0o664)
    assert main(["run", "job.script=train.py"]) == 2
    assert "nobody else may write it" in capsys.readouterr().err
    file.unlink()
    assert main(["run", "job.script=train.py"]) == 2
    assert "No such file" in capsys.readouterr().err
