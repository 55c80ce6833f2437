"""The newest checkpoint of a run, and the run that saves there: in a folder, or in an object store.

An object store is asked by a process of its own: it may be slow, or never answer.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from typing import Any

from ftslurm.checkpoint import store
from ftslurm.config.schema import Config
from ftslurm.config.store_url import is_url
from ftslurm.core.state.model import Saved
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import checkpoint_owner
from ftslurm.run.directory import RunDir
from ftslurm.security import programs

ANSWER_S = 90.0  # the client libraries try again by themselves
Command = tuple[list[str], dict[str, str]]  # of a process that asks ftslurm.checkpoint.store: words, environment


def url(config: Config) -> str | None:
    """Return checkpoint.dir if it is an object store."""
    return config.checkpoint.dir if is_url(config.checkpoint.dir or "") else None


def newest(config: Config, run: RunDir) -> Saved | None:
    """Return the newest complete checkpoint; else why what is in checkpoint.dir cannot be used; None: it is empty.

    Raises:
        EnvironmentProblem: an object store cannot be read.
    """
    found = None
    with suppress(OSError):  # of a folder: saving a checkpoint there reports what is wrong
        found = _ask(config, run, "newest")
    return found and Saved(*found)


def begin_with(config: Config, run: RunDir) -> tuple[Saved | None, str | None]:
    """Return the newest checkpoint, and why checkpoint.dir cannot be used; None: it is this run's now."""
    try:
        saved = newest(config, run)
        if config.checkpoint.dir is None:
            return saved, None
        if url(config) is None:
            other = checkpoint_owner.owner(config.checkpoint.dir)
        else:
            other = checkpoint_owner.run_at(str(_ask(config, run, "owner")))
        refused = checkpoint_owner.used_by(config, run, other)
        if refused is None:
            with suppress(OSError):
                _ask(config, run, "take", str(run.root))
    except EnvironmentProblem as error:
        return None, str(error)
    return saved, refused


def distrust(config: Config, run: RunDir, group: int, attempt: int, after: int) -> Command:
    """Return the command that has nobody restore what an attempt of a group has saved after a step."""
    return _command(config, run, "distrust", run.root.name, str(group), str(attempt), str(after))


def _ask(config: Config, run: RunDir, what: str, *words: str) -> Any:
    """Return the answer of ftslurm.checkpoint.store, where checkpoint.dir is.

    Raises:
        OSError: a folder cannot be used.
        EnvironmentProblem: an object store cannot be used.
    """
    place = _place(config, run)
    if url(config) is None:
        return store.answer(what, place, *words)
    argv, env = _command(config, run, what, *words)
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=ANSWER_S, check=True)
        return json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2][:600]
        raise EnvironmentProblem(
            f"checkpoint.dir={place} cannot be used: {last or f'exit code {error.returncode}'}; see that the bucket "
            f"is there, and its credentials in the environment of the controller"
        ) from error
    except subprocess.TimeoutExpired:  # its own words are the whole command
        raise EnvironmentProblem(f"checkpoint.dir={place} cannot be used: no answer within {ANSWER_S:g} s") from None
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"checkpoint.dir={place} cannot be used: {error}") from error


def _command(config: Config, run: RunDir, what: str, *words: str) -> Command:
    environ = {**os.environ, **{name: str(value) for name, value in config.job.env.items()}}
    return programs.module("ftslurm.checkpoint.store", what, _place(config, run), *words), environ


def _place(config: Config, run: RunDir) -> str:
    return config.checkpoint.dir or str(run.checkpoints)
