"""Overrides of a finished configuration, as `ftslurm resume` has them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest

from ftslurm.config.compose import compose, dump, to_config
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError

PARENT = ["job=ddp", "groups.count=5", "faults=kill_one", "cluster=array", "cluster.partition=gpu"]


@cache
def composed() -> Config:
    return to_config(compose(PARENT))


def base() -> Config:
    return deepcopy(composed())


def changed(parent: Config, *words: str) -> Config:
    return to_config(compose(words, parent))


def test_without_overrides_nothing_changes() -> None:
    parent = base()
    parent.job.env = {"NOTE": "${x}"}
    assert dump(changed(parent)) == dump(parent)


def test_a_setting_changes_alone() -> None:
    parent = base()
    child = changed(parent, "job.args.lr=0.5", "restart.backoff_s=3")
    assert child.job.args == parent.job.args | {"lr": "0.5"}
    assert (child.restart.backoff_s, child.groups.count, child.cluster.partition) == (3.0, 5, "gpu")


def test_a_preset_replaces_its_section_and_no_other() -> None:
    child = changed(base(), "faults=none", "cluster=local")
    assert child.faults.plan == []
    assert (child.cluster.kind, child.cluster.partition) == ("local", None)
    assert child.groups.count == 5


def test_the_number_of_steps_follows_the_scripts_argument_as_in_the_preset() -> None:
    assert changed(base(), "job.args.steps=240").job.total_steps == 240
    parent = base()
    parent.job.total_steps = 50
    assert changed(parent, "job.args.steps=240").job.total_steps == 50


@pytest.mark.parametrize(("word", "says"), [("groups.cout=3", "groups.count"), ("faults=nono", "no such preset")])
def test_wrong_overrides_are_refused_as_in_a_first_run(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changed(base(), word)
