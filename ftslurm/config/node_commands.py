"""Read and check commands that a setting lists: those of health.preflight, and hooks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError

SHIPPED = "ftslurm-preflight"  # ftslurm's own check, which every node has
PREFLIGHT = "'health.preflight=[[ftslurm-preflight],[/opt/site/check,--quick]]'"


def commands(config: Config) -> list[tuple[str, ...]]:
    """Return the commands of health.preflight, as a node can run them.

    Raises:
        ConfigError: an entry is no command.
    """
    return [absolute(words) for words in named(config)]


def named(config: Config) -> list[tuple[str, ...]]:
    """Return the commands of health.preflight as the user has written them.

    Raises:
        ConfigError: an entry is no command.
    """
    return [words_of(entry, PREFLIGHT) for entry in config.health.preflight]


def words_of(entry: Any, example: str) -> tuple[str, ...]:
    """Return the words of a command: of a list, or of a single word.

    Args:
        example: how the setting is written, for the message.

    Raises:
        ConfigError: it is none.
    """
    words = [entry] if isinstance(entry, str) else entry
    simple = isinstance(words, list) and all(
        isinstance(w, (str, int, float)) and not isinstance(w, bool) for w in words
    )
    if not simple or not words or not str(words[0]):
        raise ConfigError(
            f"{_setting(example)}: {entry!r:.80} is no command; write each as a list of its arguments, {example}"
        )
    return tuple(map(str, words))


def absolute(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command as seen from any folder; a program without a folder is found on PATH."""
    program, *rest = words
    return (str(Path(program).expanduser().absolute()) if "/" in program else program, *rest)


def check_program(command: Sequence[str], example: str) -> None:
    """Refuse a command whose program this machine does not have.

    Raises:
        ConfigError: the message names the setting.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"{_setting(example)}: {command[0]} is no program that can be run; give a path "
            f"(./NAME for one in this folder), make it executable (chmod +x), or install it. Arguments are in the list "
            f"of the command: {example}"
        )


def _setting(example: str) -> str:
    return example.partition("=")[0].lstrip("'")


def check_preflight(config: Config) -> None:
    """Refuse commands that cannot be run. What a compute node has installed is not known before it is checked.

    Raises:
        ConfigError: the message names the setting.
    """
    for command in commands(config):
        if config.cluster.kind == "local" and command[0] != SHIPPED:
            check_program(command, PREFLIGHT)
