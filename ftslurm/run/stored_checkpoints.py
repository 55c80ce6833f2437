"""The newest checkpoint of a run, and the run that saves there: in a folder, or in an object store.

An object store is asked by a process of its own: it may be slow, or never answer.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from contextlib import suppress
from threading import Thread

from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Store
from ftslurm.config.schema import Config
from ftslurm.config.store_url import is_url
from ftslurm.core.state.model import Saved
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import checkpoint_owner
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files, programs

log = logging.getLogger("ftslurm.stored_checkpoints")
ANSWER_S = 90.0  # the client libraries try again by themselves


def url(config: Config) -> str | None:
    """Return checkpoint.dir if it is an object store."""
    return config.checkpoint.dir if is_url(config.checkpoint.dir or "") else None


def _folder(config: Config, run: RunDir) -> str:
    return config.checkpoint.dir or str(run.checkpoints)


def newest(config: Config, run: RunDir) -> Saved | None:
    """Return the newest complete checkpoint; else why what is in checkpoint.dir cannot be used; None: it is empty.

    Raises:
        EnvironmentProblem: an object store cannot be read.
    """
    return _look(config, run)[0]


def begin_with(config: Config, run: RunDir) -> tuple[Saved | None, str | None]:
    """Return the newest checkpoint, and why checkpoint.dir cannot be used; None: it is this run's now."""
    try:
        saved, other = _look(config, run)
        refused = checkpoint_owner.used_by(config, run, other)
        if refused is None and url(config) is not None:
            _ask(config, "take", str(run.root))
        elif refused is None and config.checkpoint.dir is not None:
            with suppress(OSError):  # saving a checkpoint there reports what is wrong
                Store(config.checkpoint.dir).take(str(run.root))
    except EnvironmentProblem as error:
        return None, str(error)
    return saved, refused


def distrust(config: Config, run: RunDir, group: int, attempt: int, after: int) -> None:
    """Have nobody restore what an attempt of a group has saved after a step.

    An object store is written in the background; the controller does not end before.
    """

    def mark() -> None:
        try:
            if url(config) is None:
                Store(_folder(config, run)).distrust(Writer(run.root.name, group, attempt), after)
            else:
                _ask(config, "distrust", run.root.name, str(group), str(attempt), str(after))
        except (OSError, EnvironmentProblem) as error:
            log.warning("checkpoints of group %s, which had diverged, may be restored: %s", group, error)

    if url(config) is None:
        mark()
    else:
        Thread(target=mark).start()


def _look(config: Config, run: RunDir) -> tuple[Saved | None, RunDir | None]:
    """Return the newest checkpoint, as `newest`, and the run of this user that has saved there last."""
    if url(config) is None:
        folder, found = _folder(config, run), None
        with suppress(OSError):
            found = Store(folder).summary()
        return found and Saved(*found), checkpoint_owner.owner(folder)
    answer = _ask(config, "look")
    try:
        found, owner = json.loads(answer)
        other = checkpoint_owner.run_at(owner)
        return found and Saved(*found), other if other is not None and owned_files.is_own(other.root) else None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentProblem(
            f"checkpoint.dir={url(config)} cannot be used: its program printed no answer"
        ) from error


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
