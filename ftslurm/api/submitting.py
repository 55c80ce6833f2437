"""Submits a run whose configuration is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from ftslurm.config import site
from ftslurm.config.schema import Config, script_arguments, words
from ftslurm.errors import ConfigError
from ftslurm.run import checkpoint_owner
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables
from ftslurm.submission import capabilities, preflight, setup_lines, submit


def settle(config: Config, preview: bool = False, judge: bool = True) -> list[str]:
    """Set what depends on the cluster (cluster.kind, groups.gpus), and check script and secrets. Return notes about it.

    Args:
        preview: nothing will be submitted.
        judge: look for errors in the script where it lies; false: the run has a copy of another run.

    Raises:
        FtslurmError: the cluster cannot hold the run, a local one has no such job.python, a secret is missing, the
            script has a syntax error, or another run uses checkpoint.dir and this one would start at once.
    """
    found = keep_secrets(config) + capabilities.resolve(config, preview)
    site.read().check(config)
    preflight.check_variables(config)
    known = config.local and not config.cluster.setup  # nodes may have other programs, and set-up commands give some
    command = words(config.job.python)
    if known and command and not shutil.which(command[0], path=config.job.env.get("PATH")):
        raise ConfigError(f"job.python={command[0]}: there is no such program on this machine")
    if judge:
        preflight.check_script(config)
    found += preflight.own_requeue(config)
    setup_lines.script(config.cluster.setup)  # bash understands them
    secret_variables.check_submitter(config.job.secrets, os.environ)
    if config.cluster.controller == "job":  # else this process is in an allocation, and may be a part of another run
        found += filter(None, [_checkpoints_in_use(config, preview) or checkpoint_owner.goes_on_from(config)])
    if not preview and config.hooks.callbacks:
        from ftslurm.observer import hook_command  # most runs have none

        hook_command.check_callbacks(config, os.environ)
    return found


def _checkpoints_in_use(config: Config, preview: bool) -> str | None:
    """Return a note if another run uses checkpoint.dir now: it may have ended when the job of this one starts.

    Raises:
        ConfigError: this run would start at once.
    """
    used = checkpoint_owner.in_use(config)
    if used is not None and config.local and not preview:
        raise ConfigError(used)
    return used and f"{used}. If it still runs when this run starts, this run ends"


def keep_secrets(config: Config) -> list[str]:
    """Take secrets out of job.env and off the command line; workers get them as with job.secrets. Return notes."""
    job = config.job
    notes = []
    if moved := secret_variables.withdraw(job.env, job.secrets, os.environ):
        notes.append(
            f"{', '.join(f'job.env.{name}' for name in moved)} is a secret: no file has its value, but others may have "
            f"read it on a command line (ps, scontrol show job); export it, with job.secrets=[{','.join(moved)}]"
        )
    if shown := secret_variables.in_arguments(script_arguments(job.args)):
        notes.append(
            f"job.args: {', '.join(shown)} looks like a secret; other users can read arguments (ps), and "
            f"config.yaml has them: export a variable, name it in job.secrets and read it in the script"
        )
    return notes


def launch(config: Config, create: Callable[[Config], RunDir] = submit.create) -> RunDir:
    """Create the run directory and start the controller, in a Slurm job or on this machine.

    Args:
        create: creates the run directory.

    Raises:
        FtslurmError: the directory cannot be created, or sbatch refuses the job.
    """
    run = create(config)
    if not config.local:
        from ftslurm.submission import pilot_jobs

        refuses = "would refuse" if config.job_per_group else "refused"
        submit.unless_refused(run, lambda: pilot_jobs.try_out(config, run, not config.job_per_group, refuses))
    submit.submit(config, run)
    return run
