"""Check keys, types and presets of a configuration, so that each error names the setting and what it may be.

The schema's dataclasses are the rule. Overrides are checked before Hydra composes them, the composed configuration is
checked once more, because presets may be the user's own. Whether values make sense together is checked later
(config/validate.py).
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ftslurm.config import option_names
from ftslurm.config.hydra_adapter import BASIC, Arguments, Override, check_launcher
from ftslurm.config.removed import REMOVED
from ftslurm.config.schema import MISSING as MUST_BE_GIVEN
from ftslurm.config.schema import Config, shipped
from ftslurm.errors import ConfigError
from ftslurm.words import meant, nearest

_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_TRUTHS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")  # as OmegaConf reads them
_EXAMPLES = {
    "faults.plan": "'faults.plan=[{kind: kill, group: 1, at: 50}]'",
    "faults.random": "'faults.random={mean_s: 60, kinds: [kill]}'",
}
INTERNAL = "internal"  # the section that holds no settings


# --- what there is ----------------------------------------------------------------------------------------------------


@cache
def _types(section: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass."""
    return get_type_hints(section)


def keys(section: type = Config, prefix: str = "") -> Iterator[str]:
    """Generate every setting, dotted."""
    for name, kind in _types(section).items():
        if is_dataclass(kind):
            if name != INTERNAL:
                yield from keys(kind, f"{prefix}{name}.")  # type: ignore[arg-type]  # a dataclass, not one's instance
        else:
            yield f"{prefix}{name}"


def _some_keys(key: str) -> str:
    """Return a few keys of the same section, or else the sections, for a hint."""
    section = key.split(".")[0]
    same = [name for name in keys() if name.startswith(f"{section}.")]
    return ", ".join(same[:6]) if same else ", ".join(sorted({name.split(".")[0] for name in keys()}))


def _nearest(key: str) -> str | None:
    """Return the setting that is probably meant."""
    names, last = list(keys()), key.rpartition(".")[2]
    if key in names:
        return key
    same = [name for name in names if name.endswith(f".{last}")]
    return same[0] if same else nearest(key, names)


def _no_setting(key: str) -> ConfigError:
    if key in REMOVED:
        return ConfigError(f"there is no setting {key}: {REMOVED[key]}")
    if near := _nearest(key):
        return ConfigError(f"there is no setting {key}; {meant(near)}")
    if "." in key:
        return ConfigError(f"there is no setting {key}; near it there are {_some_keys(key)}")
    return ConfigError(
        f"there is no setting {key}; if it is an argument of your script, write job.args.{key}; there are "
        f"{_some_keys(key)}"
    )


# --- overrides --------------------------------------------------------------------------------------------------------


def check_option(option: str | None, known: Sequence[str]) -> None:
    """Refuse an option that does not exist, such as --count=4: it may be a setting, written without dashes.

    Args:
        known: the options that there are, one of which may be meant.

    Raises:
        ConfigError: the option is not None.
    """
    if option is None:
        return
    name, _, value = option.partition("=")
    key = name.lstrip("-").replace("-", "_")
    hint = option_names.likely(name, known)
    presets = key in _types(Config) and (shipped("conf") / key).is_dir()
    section = not presets and any(one.startswith(f"{key}.") for one in keys())
    near = key if presets else _nearest(key) or (None if hint or section else f"job.args.{name.lstrip('-')}")
    if name == "--config":
        hint += " here: only `ftslurm run --config RUN/config.yaml` takes a file, and nothing else beside it"
    how = f"; there are {_some_keys(key)}" if section else f": {near}={value or 'VALUE'}" if near else ""
    raise ConfigError(f"there is no option {name}{hint}; settings are written key=value, without dashes{how}")


def check_overrides(overrides: Sequence[Override], arguments: Arguments) -> list[str]:
    """Check overrides; returns them as Hydra wants them.

    A setting gets "++": Hydra then adds it where its mappings lack it, as with job.args.lr.

    Raises:
        ConfigError: there is no such key or preset, or a value has the wrong type.
    """
    folders = [shipped("conf")]
    if arguments.config_dir is not None:
        folders.insert(0, Path(arguments.config_dir))
        if not folders[0].is_dir():
            raise ConfigError(f"--config-dir {arguments.config_dir}: the folder was not found")
    own_presets = arguments.own_config or any(one.key == "hydra.searchpath" for one in overrides)
    sweeps = arguments.multirun or any(one.key == "hydra.mode" for one in overrides)
    basic = all(one.text == BASIC for one in overrides if one.key == "hydra/sweeper")
    words = []
    for override in overrides:
        word, key = override.word, override.key.partition("@")[0]
        if len(override.values) > 1 and not sweeps:
            raise ConfigError(
                f"{word} has several values: add --multirun (-m) for one run with each, write {key}=[...] for a list, "
                f"or put quotes around a text with commas"
            )
        _check_hydras_own(override, key, sweeps)
        section = any((folder / key).is_dir() for folder in folders)
        if key.startswith(("hydra.", "hydra/")) or (own_presets and (section or "/" in key)):
            pass
        elif section and not any(isinstance(value, dict) for value in override.values):
            _check_preset(override, key, folders)
        else:
            check_setting(override)
            # A sweeper that is not Hydra's own names its parameters, in its results and its storage, as they are here.
            plain = override.deletes or (override.sweeps and not basic)
            word = word if plain else f"++{word.lstrip('+')}"
        words.append(word)
    return words


def _check_hydras_own(override: Override, key: str, sweeps: bool) -> None:
    """Refuse a launcher, and a sweeper where nothing sweeps."""
    if key == "hydra/launcher":
        check_launcher(override.text)
    if key == "hydra/sweeper" and not sweeps:
        raise ConfigError(f"{override.word} without --multirun (-m): there is no sweep; add -m, or leave it out")


def _check_preset(override: Override, section: str, folders: Sequence[Path]) -> None:
    for value in override.values:
        for name in value if isinstance(value, list) else [value]:
            if name is None or "${" in str(name):
                continue
            file = f"{section}/{str(name).removesuffix('.yaml')}.yaml"
            if not any((folder / file).is_file() for folder in folders):
                there = sorted({path.stem for folder in folders for path in (folder / section).glob("*.yaml")})
                raise ConfigError(
                    f"{section}={name}: there is no such preset; there are: {', '.join(there)} (your own: "
                    f"--config-dir DIR)"
                )


def check_setting(override: Override) -> None:
    """Check the key of an override, and the type of its value.

    Raises:
        ConfigError: there is no such setting, or it cannot have such a value.
    """
    kind: Any = Config
    for name in override.key.split("."):
        kind = _inner(kind, name)
        if kind is None or override.key.startswith(INTERNAL):
            raise _no_setting(override.key)
    for value in override.values:
        text = " ".join(override.text.split()) if len(override.values) == 1 else None  # one line, whatever it holds
        check_value(kind, value, override.key, text=text)


def _inner(kind: Any, name: str) -> Any:
    """Return the type of what has this name inside a value of a type; None if nothing has."""
    kind = _present(kind)
    if kind is Any:
        return Any
    if is_dataclass(kind):
        return _types(kind).get(name)  # type: ignore[arg-type]
    match get_origin(kind), get_args(kind):
        case origin, (_, inner) if origin is dict:
            return inner
        case origin, (inner,) if origin is list and name.isdigit():
            return inner
    return None


def _present(kind: Any) -> Any:
    """Return X for the type `X | None`."""
    if get_origin(kind) in (types.UnionType, Union):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    return kind


# --- values -----------------------------------------------------------------------------------------------------------


def check_value(kind: Any, value: Any, key: str = "", text: str | None = None) -> None:
    """Check that a value has a type of the schema, or can be converted to it.

    Args:
        text: how the value was written, for the message.

    Raises:
        ConfigError: it has another type, or it is a mapping with a key that does not exist.
    """
    reference = isinstance(value, str) and ("${" in value or value == MUST_BE_GIVEN)  # OmegaConf resolves it later
    if kind is Any or reference or (value is None and _present(kind) is not kind):
        return
    kind = _present(kind)
    text = text if text is not None else "null" if value is None else str(value)
    if is_dataclass(kind):
        _check_mapping(kind, value, key, text)  # type: ignore[arg-type]
    elif get_origin(kind) is list:
        if not isinstance(value, list):
            like = _EXAMPLES.get(key, f"'{key}=[{text}]'")
            raise ConfigError(f"{key}={text}: must be a list, in square brackets: {like}")
        for number, inner in enumerate(value):
            check_value(get_args(kind)[0], inner, f"{key}[{number}]")
    elif get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{key}={text}: must be a mapping, as in '{key}={{NAME: VALUE}}' or {key}.NAME=VALUE")
        for name, inner in value.items():
            check_value(get_args(kind)[1], inner, f"{key}.{name}")
    elif isinstance(value, (dict, list)):  # not shown: it may hold a secret
        raise ConfigError(f"{key}: must be {_WANTED[kind]}, and not a list or a mapping")
    elif not _converts(kind, value):
        raise ConfigError(f"{key}={text}: must be {_WANTED[kind]}")


def _check_mapping(section: type, value: Any, key: str, text: str) -> None:
    """Check a value against a dataclass: a section of settings, or an element of a list such as faults.plan[0]."""
    known, (setting, element, _) = _types(section), key.partition("[")
    example = f", as in {_EXAMPLES[setting]}" if setting in _EXAMPLES else ""
    if not isinstance(value, dict):
        what = f"must be a mapping{example}" if element else f"that is a section of settings: {_some_keys(key)}, ..."
        raise ConfigError(f"{key}={text}: {what}")
    for name, inner in value.items():
        dotted = f"{key}.{name}".lstrip(".")
        if name not in known and element:
            raise ConfigError(f"there is no setting {dotted}; {setting} may have {', '.join(known)}")
        if name not in known:
            raise _no_setting(dotted)
        check_value(known[name], inner, dotted)
    missing = [field.name for field in fields(section) if field.default is MUST_BE_GIVEN]
    for name in missing:
        if value.get(name, MUST_BE_GIVEN) == MUST_BE_GIVEN:
            raise ConfigError(f"{key}: `{name}` is missing{example}")


def _converts(kind: type, value: object) -> bool:
    """Whether OmegaConf converts a value to a number, a truth value or a text."""
    if kind is str:
        return isinstance(value, (str, int, float, bool))
    if kind is bool:
        return isinstance(value, (bool, int)) or (isinstance(value, str) and value.lower() in _TRUTHS)
    if isinstance(value, bool) or not isinstance(value, (str, int) if kind is int else (str, int, float)):
        return False
    try:
        kind(value)
    except (ValueError, OverflowError):
        return False
    return True
