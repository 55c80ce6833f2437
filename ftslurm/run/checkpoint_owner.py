"""Whose a checkpoint folder is: the run that saves there. Two live runs would use each other's checkpoints."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ftslurm.checkpoint.store import Store
from ftslurm.config.schema import Config
from ftslurm.config.store_url import is_url
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files
from ftslurm.security.terminal import visible


def in_use(config: Config) -> str | None:
    """Return why a run that is not submitted yet cannot use checkpoint.dir, if it is a folder; None: it can."""
    if config.checkpoint.dir is None or is_url(config.checkpoint.dir):
        return None
    return used_by(config, None, owner(config.checkpoint.dir))


def goes_on_from(config: Config) -> str | None:
    """Return which step of another run a run that is not submitted yet would go on from, if it has a folder for it.

    A run that resumes another one is told only of the checkpoint of a third.
    """
    if config.checkpoint.dir is None or is_url(config.checkpoint.dir):
        return None
    found = Store(config.checkpoint.dir).newest()
    if found is None or found.step == 0:
        return None
    if config.internal.parent is not None and found.run in ("", Path(config.internal.parent).name):
        return None  # what it was asked to do
    whose = f" of {visible(found.run)}" if found.run else ""
    return (
        f"checkpoint.dir={config.checkpoint.dir} has a checkpoint{whose}: this run goes on from its step {found.step}, "
        f"with its weights. To begin at step 0, name another folder"
    )


def owner(folder: str | Path) -> RunDir | None:
    """Return the run of this user that has saved in a checkpoint folder last, or None."""
    with suppress(OSError, EnvironmentProblem):
        return run_at(Store(str(folder)).owner())
    return None


def run_at(path: str) -> RunDir | None:
    """Return the run at a path that was written where it saves; None: it is none, as after a crash of a node."""
    return RunDir(Path(path)) if path.startswith("/") and "\0" not in path else None


def used_by(config: Config, run: RunDir | None, other: RunDir | None) -> str | None:
    """Return why another run keeps this one from using checkpoint.dir: it is running; None: it does not, or is none.

    The age of the other run's `alive` is measured against ours, which has just been touched: both have the time of
    the file server.

    Args:
        run: this run; None: it has no directory yet.
    """
    mine = run.root if run is not None else Path(config.internal.parent or "/")  # it may follow the run that it resumes
    if config.checkpoint.dir is None or other is None or other.root == mine or not owned_files.is_own(other.root):
        return None
    ours = run.alive if run is not None and run.alive.exists() else None
    age = liveness.age_s(other.alive, than=ours)
    if age is None or age >= liveness.SILENT_S or leadership.is_over(other):
        return None
    return (
        f"checkpoint.dir={config.checkpoint.dir} is in use by {other.root.name}, which is running: name another "
        f"folder, or stop that run with: ftslurm stop {other.root}"
    )
