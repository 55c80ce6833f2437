"""Which settings there are, and which one is meant by a name that is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.words import meant, nearest

INTERNAL = "internal"  # the section that holds no settings


class Declared(NamedTuple):
    """A setting as the schema declares it."""

    section: type
    key: str
    kind: Any  # its type
    field: Field[Any]


@cache
def kinds(section: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass."""
    return get_type_hints(section)


def declared(section: Any = Config, prefix: str = "") -> Iterator[Declared]:
    """Generate the settings of a dataclass, and of those inside it, in the order of the schema."""
    for field in fields(section):
        key, kind = f"{prefix}{field.name}", kinds(section)[field.name]
        if not is_dataclass(kind):
            yield Declared(section, key, kind, field)
        elif key != INTERNAL:
            yield from declared(kind, f"{key}.")


def every_key() -> list[str]:
    """Return every setting, dotted."""
    return [one.key for one in declared()]


def paths() -> list[str]:
    """Return the settings that are paths."""
    return [one.key for one in declared() if "path" in one.field.metadata]


def within(key: str, section: str) -> bool:
    """Return whether a key is this section or setting, or in it."""
    return f"{key}.".startswith(f"{section}.")


def some_keys(key: str) -> str:
    """Return a few keys of the same section, or else the sections, for a hint."""
    same = [name for name in every_key() if within(name, key.split(".")[0])]
    return ", ".join(same[:6] or sorted({name.split(".")[0] for name in every_key()}))


def _nearest(key: str) -> str | None:
    """Return the setting that is probably meant."""
    names, last = every_key(), key.rpartition(".")[2]
    same = [name for name in names if name == key or name.endswith(f".{last}")]
    return key if key in same else same[0] if same else nearest(key, names)


def no_setting(key: str) -> ConfigError:
    """Return the error for a setting that does not exist."""
    if near := _nearest(key):
        return ConfigError(f"there is no setting {key}; {meant(near)}")
    hint = "near it" if "." in key else f"an argument of your script comes after --, or is job.args.{key};"
    return ConfigError(f"there is no setting {key}; {hint} there are {some_keys(key)}")
