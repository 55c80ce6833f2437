"""Starts runs, and finds them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ftslurm.api import listing, submitting
from ftslurm.api.run import Run
from ftslurm.config import compose
from ftslurm.errors import ConfigError, RunNotFound
from ftslurm.protocol.run_states import GOING
from ftslurm.run.find import find as by_name
from ftslurm.run.find import newest
from ftslurm.security import owned_files
from ftslurm.submission import preflight

log = logging.getLogger("ftslurm")


def submit(overrides: Sequence[str] = (), *, config_dir: str | os.PathLike[str] | None = None) -> Run:
    """Start a run on Slurm, or on this machine, and return at once.

    Args:
        overrides: as on the command line: ["job=ddp", "groups.count=4"]. A sweep is one call for each run.
        config_dir: a folder with presets of your own, as --config-dir.

    Raises:
        FtslurmError: it cannot be started; the message names the setting to change. Nothing was submitted.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides are a list of texts, as [{overrides!r}]")
    folder = None if config_dir is None else os.fspath(config_dir)
    config = compose.to_config(compose.compose(overrides, config_dir=folder))
    if config.cluster.controller == "here":
        raise ConfigError(
            "cluster.controller=here runs the controller in this process until the run ends: use it with the command "
            "`ftslurm run`; from Python leave it out"
        )
    for note in submitting.settle(config):
        log.info(note)
    run = Run(submitting.launch(config).root)
    for note in preflight.notes(config):
        log.info(note)
    return run


def find(name: str | None = None, root: str | os.PathLike[str] = "runs") -> Run:
    """Return the run with this name: a directory, an id or its beginning, a Slurm job; None: the newest.

    Raises:
        RunNotFound: there is none, or several match.
    """
    return Run(by_name(name, Path(root)).root)


def only_run(name: str | None = None, root: str | os.PathLike[str] = "runs") -> Run:
    """Return the run with this name, as `find` does; None: the only one of this user that is going.

    Raises:
        RunNotFound: there is none, or several match; the message names them.
    """
    if name is not None:
        return find(name, root)
    mine = [row for row in listing.under(Path(root)) if owned_files.is_own(Path(row.dir))]
    rows = [row for row in mine if row.state in GOING]
    if len(rows) == 1:
        return Run(rows[0].dir)
    where = Path(root).absolute()
    if rows:
        named = "".join(f"\n  {row.dir} ({row.state})" for row in rows)
        raise RunNotFound(f"{len(rows)} runs of yours are going under {where}: name the one that is meant{named}")
    raise RunNotFound(f"no run of yours is going under {where}")


def runs(root: str | os.PathLike[str] = "runs") -> list[Run]:
    """Return the runs below a folder: first yours, the newest first."""
    return [Run(files.root) for files in newest(Path(root))]
