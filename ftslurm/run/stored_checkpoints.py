"""Asks an object store for a run's checkpoints, in a process of its own: a store may be slow, or never answer."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path
from threading import Thread

from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Store
from ftslurm.config.schema import Config
from ftslurm.config.store_url import is_url
from ftslurm.core.state.model import Saved
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files, programs

log = logging.getLogger("ftslurm.stored_checkpoints")
ANSWER_S = 90.0  # the client libraries try again by themselves


def url(config: Config) -> str | None:
    """Return checkpoint.dir if it is an object store."""
    return config.checkpoint.dir if is_url(config.checkpoint.dir or "") else None


def newest_and_owner(config: Config) -> tuple[Saved | None, RunDir | None]:
    """Return the newest complete checkpoint, and the run of this user that has saved there last.

    Without one: what is wrong with those that are there; None: there are none.

    Raises:
        EnvironmentProblem: the store cannot be read.
    """
    try:
        found, owner = json.loads(_ask(config, "look"))
        saved = None if found is None else Saved(*found)
        known = owner.startswith("/") and "\0" not in owner and owned_files.is_own(Path(owner))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentProblem(
            f"checkpoint.dir={url(config)} cannot be used: its program printed no answer"
        ) from error
    return saved, RunDir(Path(owner)) if known else None


def take(config: Config, run: RunDir) -> None:
    """Note this run as the one that saves there.

    Raises:
        EnvironmentProblem: the store cannot be written.
    """
    _ask(config, "take", str(run.root))


def distrust(config: Config, run: RunDir, group: int, attempt: int, after: int) -> None:
    """Have nobody restore what an attempt of a group has saved after a step.

    An object store is written in the background; the controller does not end before.
    """

    def mark() -> None:
        try:
            if url(config) is None:
                folder = config.checkpoint.dir or str(run.checkpoints)
                Store(folder).distrust(Writer(run.root.name, group, attempt), after)
            else:
                _ask(config, "distrust", run.root.name, str(group), str(attempt), str(after))
        except (OSError, EnvironmentProblem) as error:
            log.warning("checkpoints of group %s, which had diverged, may be restored: %s", group, error)

    if url(config) is None:
        mark()
    else:
        Thread(target=mark).start()


def _ask(config: Config, what: str, *words: str) -> str:
    place = str(url(config))
    command = programs.module("ftslurm.checkpoint.store", what, place, *words)
    environ = {**os.environ, **{name: str(value) for name, value in config.job.env.items()}}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"checkpoint.dir={place} cannot be used: {error}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:600]
        raise EnvironmentProblem(
            f"checkpoint.dir={place} cannot be used: {last or f'exit code {done.returncode}'}; see that the bucket "
            f"is there, and its credentials in the environment of the controller"
        )
    return done.stdout.decode(errors="replace")
