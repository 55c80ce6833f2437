"""Make a configuration of plain values. Each gets the type that the schema says, and is checked by itself: its choices
and limits, and what files and commands can take.

OmegaConf, which composes the values, does not check them: to it a list of texts may hold lists, a type of the schema
cannot be `str | list[str]`, and its errors do not name what is in a list. What settings may be together is in
config/validate.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from ftslurm.config.schema import MISSING, Argument
from ftslurm.config.setting_names import kinds, no_setting, some_keys
from ftslurm.config.store_url import is_url
from ftslurm.errors import ConfigError
from ftslurm.security.json_text import is_finite
from ftslurm.words import listed

MAX_TEXT_BYTES = 100_000  # an argument or a variable of a process has at most 128 KiB
MAX_PATH_BYTES = 3500  # Linux has 4096, and the run's own files lie deeper
MAX_NAME_BYTES = 255  # of one folder or file
Limits: TypeAlias = Mapping[str, Any]  # `least`, `most` and `path`, as the schema declares them
_NO_LIMITS: Limits = MappingProxyType({})
_WORDS = {None: "null", True: "true", False: "false"}
_MANY: Mapping[type[object], str] = {list: "list", dict: "mapping"}
_SINGLE = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
EXAMPLES = {
    "faults.plan": "'faults.plan=[{kind: kill, group: 1, at: 50}]'",
    "hooks.on_event": "'hooks.on_event=[[./notify.sh, --chat]]'",
    "health.preflight": "'health.preflight=[[ftslurm-preflight],[/opt/site/check,--quick]]'",
}


class Plain(Enum):
    """A word that stood without quotes. Where the schema has only text it is one, with the same characters."""

    null = "null"
    Null = "Null"
    NULL = "NULL"
    tilde = "~"
    true = "true"
    True_ = "True"
    TRUE = "TRUE"
    false = "false"
    False_ = "False"
    FALSE = "FALSE"

    def __str__(self) -> str:  # as OmegaConf puts it into a text
        return self.value

    def among(self, kinds: Sequence[Any]) -> bool | str | None:
        """Return what the word means for a setting of one of these types."""
        meant = {"true": True, "false": False}.get(self.value.lower())
        return meant if type(meant) in kinds else self.value


PLAIN: Mapping[str, Plain] = {one.value: one for one in Plain}


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value of this type may have."""
    if kind is Any:
        kind = Argument
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def below(among: Sequence[Any], name: str) -> tuple[Any, ...]:
    """Return the types that what has this name in a value of such types may have; (): there is no such name."""
    inner = [get_args(one)[-1] if get_args(one) else kinds(one).get(name) for one in among if takes([one])]
    return tuple(each for one in inner if one is not None for each in kinds_of(one))


def takes(among: Sequence[Any], *shapes: type[object]) -> bool:
    """Return whether one of the types is a list or a mapping."""
    return any(_shape(one) in (shapes or (dict, list)) for one in among)


def written(value: object) -> str:
    """Return a value as people write it, on one line."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return _WORDS[value] if value is None or isinstance(value, bool) else " ".join(str(value).split())


def made(kind: Any, value: Any, key: str = "", limits: Limits = _NO_LIMITS) -> Any:
    """Return a plain value as one of a type of the schema.

    Raises:
        ConfigError: it cannot be one; the message names the key and what it may be.
    """
    among = kinds_of(kind)
    if isinstance(value, Plain):
        value = value.among(among)
    if len(among) > 1:
        return _one_of(among, value, key, limits)
    shape = _shape(kind)
    if shape is not _of_value(value):
        raise _wrong((kind,), value, key)
    if is_dataclass(kind):
        return _section(kind, value, key)
    if shape is list:
        return [made(get_args(kind)[0], one, f"{key}[{number}]") for number, one in enumerate(value)]
    if shape is dict:
        return {made(str, name, key): made(get_args(kind)[1], one, f"{key}.{name}") for name, one in value.items()}
    return _single(kind, value, key, limits)


def _shape(kind: Any) -> type[object]:
    """Return dict or list for a type whose values hold others; object for any other."""
    origin = dict if is_dataclass(kind) else get_origin(kind)
    return origin if origin in (dict, list) else object


def _of_value(value: object) -> type[object]:
    return next((shape for shape in (dict, list) if isinstance(value, shape)), object)


def _one_of(kinds: Sequence[Any], value: Any, key: str, limits: Limits) -> Any:
    """Return a value as the one of several types that it has or, if it has none of them, the first that it can be."""
    fit = [one for one in kinds if one is type(value)]
    fit = fit or [one for one in kinds if one is not NoneType and _shape(one) is _of_value(value)]
    if len(fit) == 1:
        return made(fit[0], value, key, limits)
    for one in fit:
        with suppress(WrongKind):
            return made(one, value, key, limits)
    raise _wrong(kinds, value, key)


def _section(section: Any, value: Mapping[str, Any], key: str) -> Any:
    """Return a section of settings, or an element of a list such as faults.plan[0]."""
    known = {field.name: field for field in fields(section)}
    for name, one in value.items():
        if one == MISSING:
            raise ConfigError(f"{key}.{name} must be given: a preset has {MISSING} in its place".lstrip("."))
        if name not in known and "[" in key:
            raise ConfigError(f"there is no setting {key}.{name}; {key.partition('[')[0]} may have {', '.join(known)}")
        if name not in known:
            raise no_setting(f"{key}.{name}".lstrip("."))
    for name, field in known.items():
        if field.default == MISSING and name not in value:
            raise ConfigError(f"{key}: `{name}` is missing{as_in(key)}")
    return section(
        **{
            name: made(kinds(section)[name], one, f"{key}.{name}".lstrip("."), known[name].metadata)
            for name, one in value.items()
        }
    )


def _single(kind: Any, value: Any, key: str, limits: Limits) -> Any:
    if isinstance(value, str):
        _check_text(key, value, is_path="path" in limits)
    try:
        found = _converted(kind, value)
    except (ValueError, KeyError, TypeError):
        raise _wrong((kind,), value, key) from None
    if kind in (int, float):
        least, most = limits.get("least"), limits.get("most")
        if least is not None and not found >= least:  # NaN neither
            raise ConfigError(f"{key}={written(value)}: must be at least {least}")
        if most is not None and found > most:
            raise ConfigError(f"{key}={written(value)}: must be at most {most}")
        if not is_finite(found):
            raise ConfigError(f"{key}={written(value):.40}: must be a number, and one below 2^53")
    return found


def _converted(kind: Any, value: Any) -> Any:
    if kind is NoneType or value in get_args(kind):  # one of a Literal
        return value
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if value is None:
        raise ValueError
    text = written(value)
    if kind is int and not text.lstrip("+-").isdecimal():  # 1e6
        number = float(text)
        if not number.is_integer():
            raise ValueError
        return int(number)
    return kind(value if kind is str else text)


# --- what is wrong ----------------------------------------------------------------------------------------------------


class WrongKind(ConfigError):
    """A value is of another kind than the setting: it may be one of another kind that the setting may be."""


def _wrong(kinds: Sequence[Any], value: Any, key: str) -> WrongKind:
    shape = _of_value(value)
    shown = f"{key}={written(value)}" if shape is object else key or "it"  # what is in others may be a secret
    if is_dataclass(kinds[0]) and "." not in key:
        return WrongKind(f"{shown}: that is a section of settings: {some_keys(key)}, ...")
    wanted = [one for kind in kinds if kind is not NoneType for one in _wanted(kind, key, value)]
    instead = "" if shape is object else f", and not a {_MANY[shape]}"
    if str in kinds and not isinstance(value, str):
        instead += "; quotes around a value make it text"
    return WrongKind(f"{shown}: must be {listed(wanted, 'or')}{instead}")


def _wanted(kind: Any, key: str, value: Any) -> Sequence[str]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if kind in _SINGLE:
        return (_SINGLE[kind],)
    if _shape(kind) is list:
        text = written(value) if _of_value(value) is object else "..."
        example = f": '{key}=[{text}]'"
        return (f"a list, in square brackets{as_in(key) or example}",)
    return (f"a mapping{as_in(key) or f', as in {key}.NAME=VALUE'}",)


def as_in(key: str) -> str:
    """Return how a setting is written, or one of its elements; "" if that needs no example."""
    setting, _, inside = key.partition("[")
    return f", as in {EXAMPLES[setting]}" if setting in EXAMPLES and "." not in inside else ""


def _check_text(key: str, text: str, is_path: bool) -> None:
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        size = -1
    if "\0" in text or size < 0:
        raise ConfigError(f"{key}={text[:60]!r}: a zero byte or half a character, which no file or command can have")
    if size > MAX_TEXT_BYTES:
        raise ConfigError(f"{key}={text[:60]!r}...: {size} bytes, and no command takes more than {MAX_TEXT_BYTES}")
    if is_path and key != "checkpoint.dir" and is_url(text):
        raise ConfigError(f"{key}={text}: is a URL and no path; give a path that all nodes of the run share")
    if is_path and (
        size > MAX_PATH_BYTES or any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in PurePath(text).parts)
    ):
        raise ConfigError(
            f"{key}={text[:60]!r}...: a path has at most {MAX_PATH_BYTES} bytes here, and each name in it at "
            f"most {MAX_NAME_BYTES}"
        )
