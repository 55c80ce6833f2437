"""Read and check commands that a setting lists: those of health.preflight, and hooks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ftslurm.config.schema import Config, words
from ftslurm.config.typed_values import EXAMPLES

SHIPPED = "ftslurm-preflight"  # ftslurm's own check, which every node has
PREFLIGHT = "health.preflight"


def commands(config: Config) -> list[tuple[str, ...]]:
    """Return the commands of health.preflight, as a node can run them."""
    return [absolute(words(entry)) for entry in config.health.preflight]


def absolute(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command as seen from any folder; a program without a folder is found on PATH."""
    program, *rest = command
    return (str(Path(os.path.expanduser(program)).absolute()) if "/" in program else program, *rest)


def wrong(setting: str, command: Sequence[str], runs_here: bool) -> Iterator[str]:
    """Yield why a command of a setting can be none, or why its program cannot be run.

    Args:
        runs_here: this machine must have the program.
    """
    if not command or not command[0]:
        yield f"{setting}: a command is empty; write each as a list of its arguments, as in {EXAMPLES[setting]}"
    elif runs_here and shutil.which(program := absolute(command)[0]) is None:
        yield (
            f"{setting}: {program} is no program that can be run; give a path "
            f"(./NAME for one in this folder), make it executable (chmod +x), or install it. Arguments are in the list "
            f"of the command: {EXAMPLES[setting]}"
        )


def check_preflight(config: Config) -> Iterator[str]:
    """Yield why commands cannot be run. What a compute node has installed is not known before it is checked."""
    for command in map(words, config.health.preflight):
        yield from wrong(PREFLIGHT, command, config.local and command[:1] != [SHIPPED])
