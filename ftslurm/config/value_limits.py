"""Is every value of a configuration one that files, commands and clocks can take at all? Asked before what it means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import PurePath

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.security.json_text import is_finite

LONGEST_TEXT = 100_000  # bytes: an argument or a variable of a process has at most 128 KiB
LONGEST_PATH = 3500  # bytes: Linux has 4096, and the run's own files lie deeper
LONGEST_NAME = 255  # bytes, of one folder or file
LONGEST_TIME = 10**9  # seconds or milliseconds: operating systems and libraries overflow beyond
MOST_NODES = 65_536  # of a run; Slurm has no larger cluster
MOST_WORKERS = 1_000_000
_PATHS = ("run.root", "run.dir", "checkpoint.dir", "job.script")


def check(config: Config) -> None:
    """Refuse values that nothing can take.

    Raises:
        ConfigError: the message names the key.
    """
    for key, value in _values(config, ""):
        if isinstance(value, str):
            _check_text(key, value)
        elif isinstance(value, (int, float)) and not key.startswith("job.args"):
            _check_number(key, value)
    groups = config.groups
    for what, count, most in (
        ("nodes", groups.count * groups.nodes, MOST_NODES),
        ("workers", groups.count * groups.nodes * groups.workers, MOST_WORKERS),
    ):
        if count > most:
            raise ConfigError(
                f"groups.count={groups.count} with groups.nodes={groups.nodes} and groups.workers={groups.workers} has "
                f"{count} {what}, and a run at most {most}: lower one of them"
            )


def _values(value: object, key: str) -> Iterator[tuple[str, object]]:
    """Every single value of a configuration, and where it is; also what a user's own mapping calls it."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _values(getattr(value, field.name), f"{key}.{field.name}".lstrip("."))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield key, name
            yield from _values(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, key)
    else:
        yield key, value


def _check_text(key: str, text: str) -> None:
    size = len(os.fsencode(text)) if _encodes(text) else -1
    if "\0" in text or size < 0:
        raise ConfigError(f"{key}={text[:60]!r}: a zero byte or half a character, which no file or command can have")
    if size > LONGEST_TEXT:
        raise ConfigError(f"{key}={text[:60]!r}...: {size} bytes, and no command takes more than {LONGEST_TEXT}")
    if key in _PATHS and (size > LONGEST_PATH or any(len(os.fsencode(n)) > LONGEST_NAME for n in PurePath(text).parts)):
        raise ConfigError(
            f"{key}={text[:60]!r}...: a path has at most {LONGEST_PATH} bytes here, and each name in it at "
            f"most {LONGEST_NAME}"
        )


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _check_number(key: str, number: float) -> None:
    if isinstance(number, bool):
        return
    if not is_finite(number):
        raise ConfigError(f"{key}={number!s:.40}: must be a number, and one below 2^53")
    if key.endswith(("_s", "_ms")) and abs(number) > LONGEST_TIME:
        raise ConfigError(f"{key}={number}: must be at most {LONGEST_TIME}")
