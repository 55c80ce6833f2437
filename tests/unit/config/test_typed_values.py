"""A value of a setting has the type that the schema says, or is refused by its key."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from fuzz import VALUES, tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.config.schema import Config, Fault, HookConfig
from ftslurm.config.setting_names import every_key, kinds
from ftslurm.config.typed_values import made
from ftslurm.errors import ConfigError

ENTRIES = st.dictionaries(
    st.sampled_from(["at", "kind", "group", "groups", "time", "sbatch", "mean_s", "kinds", "command", "events", "x"]),
    VALUES,
    max_size=4,
)
ANY = VALUES | ENTRIES | st.lists(ENTRIES, max_size=2) | st.lists(st.lists(VALUES, max_size=2), max_size=2)


def fits(kind: Any, value: object) -> bool:
    """Return whether a value is of a type, with all that is in it."""
    inner = get_args(kind)
    if kind is Any:
        return True
    if get_origin(kind) in (Union, UnionType):
        return any(fits(one, value) for one in inner)
    if get_origin(kind) is Literal:
        return value in inner
    if get_origin(kind) is list:
        return isinstance(value, list) and all(fits(inner[0], one) for one in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(type(name) is str and fits(inner[1], one) for name, one in value.items())
    if is_dataclass(kind):
        return type(value) is kind and all(
            fits(kinds(kind)[field.name], getattr(value, field.name)) for field in fields(kind)
        )
    return type(value) is (kind or NoneType)


def configured(key: str, value: object) -> Config:
    section, _, name = key.partition(".")
    config = made(Config, {section: {name: value}} if name else {section: value})
    assert isinstance(config, Config)
    return config


def test_the_defaults_have_their_types() -> None:
    assert fits(Config, Config())
    assert made(Config, {}) == Config()


@tried(600)
@given(key=st.sampled_from(every_key()), value=ANY)
def test_any_value_becomes_one_of_the_type_or_is_refused_by_its_key(key: str, value: object) -> None:
    why = ""
    try:
        config = configured(key, value)
    except ConfigError as error:
        config, why = Config(), str(error)
    assert fits(Config, config)
    assert why == "" or (key in why and "\n" not in why)


@pytest.mark.parametrize(
    ("key", "given_", "expected"),
    [
        ("groups.count", "5", 5),
        ("job.total_steps", 1e6, 1_000_000),  # 1e6 is a float to YAML
        ("groups.gpus", None, None),
        ("job.longest_step_s", 3, 3.0),
        ("follow", "true", True),
        ("run.name", 3, "3"),
        ("job.python", ["nice", 3], ["nice", "3"]),
        ("job.python", "/opt/python", "/opt/python"),
        (
            "cluster.sbatch",
            {"a": "8G", "b": True, "c": 3, "d": "true"},
            {"a": "8G", "b": True, "c": "3", "d": "true"},
        ),
        ("standby.count", "2", 2),
        ("standby.count", "each", "each"),
        ("health.hang_after_s", 3, 3.0),
        ("groups.count", "1e3", 1000),
        ("job.args", {"a": [1, 2.5], "b": {"c": None}, "d": False}, {"a": ["1", "2.5"], "b": {"c": None}, "d": False}),
        ("hooks.on_event", ["a", ["b", 1], {"command": "c"}], ["a", ["b", "1"], HookConfig("c")]),
        ("faults.plan", [{"at": 60, "kind": "stop"}], [Fault("stop", at=60.0)]),
    ],
)
def test_what_can_be_read_as_the_type_is(key: str, given_: object, expected: object) -> None:
    section, _, name = key.partition(".")
    found = getattr(configured(key, given_), section)
    found = getattr(found, name) if name else found
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("key", "given_", "why"),
    [
        ("groups.count", 2.5, "groups.count=2.5: must be a whole number"),
        ("health.hang_after_s", -1, "health.hang_after_s=-1: must be at least 0"),
        ("health.hang_after_s", "never", "health.hang_after_s=never: must be a number or auto"),
        ("standby.count", -1, "standby.count=-1: must be at least 0"),
        ("groups.count", "1e-3", "groups.count=1e-3: must be a whole number"),
        ("groups.count", "0x10", "groups.count=0x10: must be a whole number"),
        ("cluster.account", "???", "cluster.account must be given: a preset has"),
        ("job.env", {"A": None}, "job.env.A=null: must be text; quotes around a value make it text"),
        (
            "cluster.sbatch",
            {"constraint": ["a|b"]},
            "constraint: must be .* not a list; quotes around a value make it text",
        ),
    ],
)
def test_what_is_wrong_is_said_of_the_kind_that_the_value_has(key: str, given_: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        configured(key, given_)


@pytest.mark.parametrize("inner", [["s3cr3t"], {"A": "s3cr3t"}])
def test_what_is_in_a_list_or_a_mapping_is_not_shown_when_it_is_refused(inner: object) -> None:
    for key, value in (("job.secrets", [inner]), ("job.env", {"A": inner}), ("run.name", inner), ("groups.max", inner)):
        with pytest.raises(ConfigError) as refused:
            configured(key, value)
        assert "s3cr3t" not in str(refused.value)
