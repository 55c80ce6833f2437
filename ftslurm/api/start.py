"""Composes a configuration and starts a run with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ftslurm.api.run import Run
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.observer import callback_receiver
from ftslurm.run import find
from ftslurm.security import secret_variables
from ftslurm.submission import capabilities, pilot_jobs, submit

log = logging.getLogger("ftslurm")


def submit_run(overrides: Sequence[str] = (), *, config_dir: str | os.PathLike[str] | None = None) -> Run:
    """Start a run on Slurm, or on this machine, and return at once.

    Args:
        overrides: as on the command line: ["job=ddp", "groups.count=4"]. A sweep is one call for each run.
        config_dir: a folder with presets of your own, as --config-dir.

    Raises:
        FtslurmError: it cannot be started; the message names the setting to change. Nothing was submitted.
    """
    config = configure(overrides, config_dir)
    if config.cluster.controller == "here":
        raise ConfigError(
            "cluster.controller=here runs the controller in this process until the run ends: use it with the command "
            "`ftslurm run`; from Python leave it out"
        )
    if note := settle(config):
        log.info(note)
    return launch(config)


def configure(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None = None) -> Config:
    """Return the checked configuration of one run.

    Raises:
        ConfigError: unknown key or preset, wrong type, a value that contradicts another, an option, a sweep.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides are a list of texts, as [{overrides!r}]")
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(f"{word} is an option of the command line; here are only overrides, as groups.count=4")
    options = [] if config_dir is None else ["--config-dir", os.fspath(config_dir)]
    return compose.to_config(compose.compose([*overrides, *options])[0])


def settle(config: Config, preview: bool = False) -> str:
    """Set what depends on the cluster (cluster.kind, groups.gpus), and check the secrets. Return a note about it.

    Args:
        preview: nothing will be submitted.

    Raises:
        FtslurmError: the cluster cannot hold the run, or a secret is missing.
    """
    note = capabilities.resolve(config, preview)
    secret_variables.check_submitter(config.job.secrets, os.environ, submit.exported(config, os.environ))
    if not preview:
        callback_receiver.check_imports(config, os.environ)
    return note


def launch(config: Config) -> Run:
    """Create the run directory and start the controller, in a Slurm job or on this machine.

    Raises:
        FtslurmError: the directory cannot be created, or sbatch refuses the job.
    """
    run = submit.create(config)
    if config.cluster.mode == "array":
        submit.unless_refused(run, lambda: pilot_jobs.try_out(config, run))
    submit.submit(config, run)
    return Run(run.root)


def find_run(name: str | None = None, root: str | os.PathLike[str] = "runs") -> Run:
    """Return the run with this name: a directory, an id or its beginning, a Slurm job; None: the newest.

    Raises:
        RunNotFound: there is none, or several match.
    """
    return Run(find.find(name, Path(root)).root)


def all_runs(root: str | os.PathLike[str] = "runs") -> list[Run]:
    """Return the runs below a folder: first yours, the newest first."""
    return [Run(files.root) for files in find.newest(Path(root))]
