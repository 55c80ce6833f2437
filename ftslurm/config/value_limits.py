"""Check every value by itself: the choices and limits of the schema, notation, and what files and commands can take.

What settings may be together is in config/validate.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

from ftslurm.config.schema import AUTO, EACH, MAX_NODES, MAX_TIME, Config
from ftslurm.config.store_url import is_url
from ftslurm.errors import ConfigError
from ftslurm.security.json_text import is_finite

MAX_TEXT_BYTES = 100_000  # an argument or a variable of a process has at most 128 KiB
MAX_PATH_BYTES = 3500  # Linux has 4096, and the run's own files lie deeper
MAX_NAME_BYTES = 255  # of one folder or file
MAX_WORKERS = 1_000_000  # of a run
MOST_STANDBYS = 10_000
PATHS = ("run.root", "run.dir", "checkpoint.dir", "job.script", "metrics.textfile", "cluster.exclude_file")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Declared: TypeAlias = Mapping[str, Any]  # what `one_of` and `limited` of the schema note
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")  # Linux allows 15 characters
_MEMORY = re.compile(r"[0-9]{1,12}[KMGT]?", re.IGNORECASE)
_TIME = re.compile(r"([0-9]{1,9}-)?[0-9]{1,9}(:[0-9]{1,9}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)


def get(config: Config, key: str) -> Any:
    """Return the value of a dotted key: get(config, "groups.count")."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def check_values(config: Config) -> None:
    """Check every value by itself.

    Raises:
        ConfigError: the message names the key and what it may be.
    """
    for key, value, declared in _values(config, ""):
        _check_declared(key, value, declared)
        if isinstance(value, str):
            _check_text(key, value)
        elif (
            _is_number(value, float)
            and not key.startswith("job.args")  # the script's own
            and not is_finite(value)
        ):
            raise ConfigError(f"{key}={value!s:.40}: must be a number, and one below 2^53")
    _check_hang_limit(config)
    _check_standbys(config.standby.count)
    _check_size(config)
    _check_notation(config)


def _values(value: object, key: str, declared: Declared = MappingProxyType({})) -> Iterator[tuple[str, Any, Declared]]:
    """Generate every single value with its key and what the schema declares, and the keys of the user's mappings."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _values(getattr(value, field.name), f"{key}.{field.name}".lstrip("."), field.metadata)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield key, name, {}
            yield from _values(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, key)
    else:
        yield key, value, declared


def _check_declared(key: str, value: Any, declared: Declared) -> None:
    if "choices" in declared and value not in declared["choices"]:
        raise ConfigError(f"{key}={value}: must be one of {', '.join(declared['choices'])}")
    least, most = declared.get("least"), declared.get("most")
    if value is not None and least is not None and not value >= least:  # NaN neither
        raise ConfigError(f"{key}={value}: must be at least {least}")
    if value is not None and most is not None and value > most:
        raise ConfigError(f"{key}={value}: must be at most {most}")


def _check_text(key: str, text: str) -> None:
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        size = -1
    if "\0" in text or size < 0:
        raise ConfigError(f"{key}={text[:60]!r}: a zero byte or half a character, which no file or command can have")
    if size > MAX_TEXT_BYTES:
        raise ConfigError(f"{key}={text[:60]!r}...: {size} bytes, and no command takes more than {MAX_TEXT_BYTES}")
    if key in PATHS and key != "checkpoint.dir" and is_url(text):
        raise ConfigError(f"{key}={text}: is a URL and no path; give a path that all nodes of the run share")
    if key in PATHS and (
        size > MAX_PATH_BYTES or any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in PurePath(text).parts)
    ):
        raise ConfigError(
            f"{key}={text[:60]!r}...: a path has at most {MAX_PATH_BYTES} bytes here, and each name in it at "
            f"most {MAX_NAME_BYTES}"
        )


def _check_hang_limit(config: Config) -> None:
    value, least = config.health.hang_after_s, 2 * config.heartbeat_s  # two of a group's reports
    if value != AUTO and not (_is_number(value, float) and (value == 0 or least <= value <= MAX_TIME)):
        raise ConfigError(
            f"health.hang_after_s={value!s:.40}: must be a number of seconds from {least:g} to {MAX_TIME}, 0 (off) or "
            f"{AUTO}"
        )


def _check_standbys(value: object) -> None:
    if value not in (AUTO, EACH) and not (_is_number(value) and 0 <= value <= MOST_STANDBYS):
        raise ConfigError(f"standby.count={value!s:.40}: must be a number up to {MOST_STANDBYS}, {EACH}, or {AUTO}")


def _is_number(value: object, *kinds: type[float]) -> TypeGuard[float]:
    return isinstance(value, (int, *kinds)) and not isinstance(value, bool)


def _check_size(config: Config) -> None:
    groups = config.groups
    nodes = groups.count * groups.nodes
    for what, count, most in (("nodes", nodes, MAX_NODES), ("workers", nodes * groups.workers, MAX_WORKERS)):
        if count > most:
            raise ConfigError(
                f"groups.count={groups.count} with groups.nodes={groups.nodes} and groups.workers={groups.workers} has "
                f"{count} {what}, and a run at most {most}: lower one of them"
            )


def _check_notation(config: Config) -> None:
    if not NAME.fullmatch(config.run.name):
        raise ConfigError(
            f"run.name={config.run.name!r}: must be up to 64 letters, digits, dots, dashes and underscores, the first "
            f"one a letter or a digit"
        )
    memory, cluster = config.groups.mem, config.cluster
    if memory is not None and not _MEMORY.fullmatch(memory):
        raise ConfigError(f"groups.mem={memory}: must be a number with K, M, G or T, as 64G")
    limits = [("cluster.time=", cluster.time)]
    limits += [(f"cluster.ranges: groups={one.groups}, time=", one.time) for one in cluster.ranges]
    for key, time in limits:
        if time is not None and not _TIME.fullmatch(str(time)):
            raise ConfigError(f"{key}{time}: must be minutes or [days-]hours:minutes:seconds, as 1-12:00:00")
    _check_interface(cluster.interface)
    for line in cluster.setup:
        if "\n" in line:
            raise ConfigError(f"cluster.setup: one shell line per entry, {line!r} has several")


def _check_interface(value: object) -> None:
    names = value if isinstance(value, list) else [] if value is None else [value]
    if value == [] or not all(isinstance(name, str) and _INTERFACE.fullmatch(name) for name in names):
        raise ConfigError(
            f"cluster.interface={value!s:.60}: must be auto, null, the name of a network interface as ib0, or several "
            f"names as [ib0,eth0]"
        )
    if len(names) > 1 and "auto" in names:
        raise ConfigError("cluster.interface: auto among names of interfaces; give it alone")
