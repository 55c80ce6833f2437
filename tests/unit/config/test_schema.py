"""The small functions that read the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftslurm.config.compose import absolute, to_config
from ftslurm.config.schema import (
    Config,
    JobConfig,
    describe_job,
    interpreter,
    nodes_needed,
    script_arguments,
    shipped,
)
from ftslurm.errors import ConfigError


def config(**settings: Any) -> Config:
    """Return the defaults with changes: config(groups__count=3)."""
    made = Config()
    for key, value in settings.items():
        section, name = key.split("__")
        assert hasattr(getattr(made, section), name), key
        setattr(getattr(made, section), name, value)
    return made


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (None, []),
        ([], []),
        (["--lr", 0.1, "a b", True, 7], ["--lr", "0.1", "a b", "True", "7"]),
        ({"lr": 0.1, "amp": True, "note": None, "compile": False}, ["--lr", "0.1", "--amp"]),
        ({"steps": 0, "name": ""}, ["--steps", "0", "--name", ""]),  # zero and empty are values
        ({"opt": {"lr": 0.1, "amp": True, "no": None}}, ["--opt.lr", "0.1", "--opt.amp"]),
        ({"opt": {"of": {"x": [1, 2]}}, "empty": {}}, ["--opt.of.x", "1", "2"]),
        ({"betas": [0.9, 0.95], "note": "it's $HOME"}, ["--betas", "0.9", "0.95", "--note", "it's $HOME"]),
        ({"layers": []}, ["--layers"]),
    ],
)
def test_the_scripts_arguments(args: Any, words: list[str]) -> None:
    assert script_arguments(args) == words


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (None, ["/usr/bin/python3"]),
        ("/opt/my env/bin/python", ["/opt/my env/bin/python"]),  # a path, however many words
        (["apptainer", "exec", "img.sif", "python"], ["apptainer", "exec", "img.sif", "python"]),
    ],
)
def test_the_interpreter(python: Any, words: list[str]) -> None:
    assert interpreter(JobConfig(python=python), "/usr/bin/python3") == words


@pytest.mark.parametrize(
    ("count", "nodes", "per_node", "spare", "needed"),
    [
        (2, 1, 1, 0, 2),
        (4, 2, 1, 1, 9),
        (4, 1, 2, 0, 2),
        (5, 1, 2, 0, 3),  # the last node is half empty
        (4, 2, 2, 0, 4),
        (3, 2, 2, 0, 4),  # a group has the same slot on all its nodes
        (5, 1, 4, 2, 4),
        (1, 3, 1, 0, 3),
        (2, 3, 2, 0, 3),
    ],
)
def test_the_nodes_that_are_needed(count: int, nodes: int, per_node: int, spare: int, needed: int) -> None:
    made = config(groups__count=count, groups__nodes=nodes, groups__per_node=per_node, cluster__spare_nodes=spare)
    assert nodes_needed(made) == needed


@pytest.mark.parametrize(
    ("kind", "nodes", "standbys", "spare", "needed"),
    [
        ("local", 1, 0, 0, 2),
        ("local", 1, 1, 0, 3),
        ("local", 2, 2, 1, 9),
        ("slurm", 1, 1, 0, 2),  # beside the groups
        ("slurm", 2, 1, 2, 6),  # on the spare ones
    ],
)
def test_a_standby_needs_nodes_of_its_own_only_where_nodes_are_but_names(
    kind: str, nodes: int, standbys: int, spare: int, needed: int
) -> None:
    made = config(groups__nodes=nodes, standby__count=standbys, cluster__kind=kind, cluster__spare_nodes=spare)
    assert nodes_needed(made) == needed


def test_the_job_on_one_line() -> None:
    assert describe_job(config(job__script="a b.py", job__args={"lr": 0.1})) == "'a b.py' --lr 0.1"
    assert describe_job(config(job__script=None, job__module="pkg.train")) == "-m pkg.train"


def test_paths_that_others_will_see_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = absolute(config(job__script="train.py", run__root="runs", run__dir="runs/x", checkpoint__dir="../ckpt"))
    paths = (made.job.script, made.run.root, made.run.dir, made.checkpoint.dir)
    assert paths == (*(f"{tmp_path}/{name}" for name in ("train.py", "runs", "runs/x")), f"{tmp_path.parent}/ckpt")


@pytest.mark.parametrize("key", ["run__root", "run__dir", "job__script", "metrics__textfile"])
def test_a_url_is_no_path_and_becomes_no_folder(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"{key.replace('__', '.')}=s3://bucket/a.prom: is a URL and no path"):
        to_config(config(**{key: "s3://bucket/a.prom"}))
    assert not list(tmp_path.iterdir())


def test_checkpoints_may_be_in_an_object_store() -> None:
    made = absolute(config(checkpoint__dir="s3://bucket/team/"))
    assert made.checkpoint.dir == "s3://bucket/team"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute(config(job__script="~/train.py")).job.script == str(tmp_path / "train.py")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert absolute(config(run__root=str(tmp_path / "link"))).run.root == str(tmp_path / "link")


def test_the_shipped_examples_are_found() -> None:
    made = absolute(config(job__script="example:train_ddp.py"))
    assert made.job.script == str(shipped("examples") / "train_ddp.py")
    assert Path(made.job.script).is_file()
