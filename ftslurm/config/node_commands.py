"""Read and check the commands of health.preflight."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.security import programs

SHIPPED = "ftslurm-preflight"
_EXAMPLE = "'health.preflight=[[ftslurm-preflight],[/opt/site/check,--quick]]'"


def commands(config: Config) -> list[tuple[str, ...]]:
    """Return the commands, as a node can run them.

    Raises:
        ConfigError: an entry is no command.
    """
    return [_runnable(words) for words in named(config)]


def named(config: Config) -> list[tuple[str, ...]]:
    """Return the commands as the user has written them.

    Raises:
        ConfigError: an entry is no command.
    """
    return [_words(entry) for entry in config.health.preflight]


def _words(entry: Any) -> tuple[str, ...]:
    words = [entry] if isinstance(entry, str) else entry
    simple = isinstance(words, list) and all(
        isinstance(w, (str, int, float)) and not isinstance(w, bool) for w in words
    )
    if not simple or not words or not str(words[0]):
        raise ConfigError(
            f"health.preflight: {entry!r:.80} is no command; write each as a list of its arguments, {_EXAMPLE}"
        )
    return tuple(str(word) for word in words)


def _runnable(words: tuple[str, ...]) -> tuple[str, ...]:
    program, *rest = words
    if program == SHIPPED:  # found also where the environment of this Python is not on PATH
        return tuple(programs.module("ftslurm.preflight", *rest))
    return (str(Path(program).expanduser().absolute()) if "/" in program else program, *rest)


def check_preflight(config: Config) -> None:
    """Refuse commands that cannot be run. What a compute node has installed is not known before it is checked.

    Raises:
        ConfigError: the message names the setting.
    """
    for command in commands(config):
        if config.cluster.kind == "local" and shutil.which(command[0]) is None:
            raise ConfigError(
                f"health.preflight: {shlex.join(command)}: {command[0]} is no program that can be run; give a path, "
                f"make it executable (chmod +x), or install it. Arguments are in the list of the command: {_EXAMPLE}"
            )
