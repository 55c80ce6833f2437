"""Takes the code of a run when it is submitted, and says what was done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ftslurm.code import copying, own_git, provenance, record
from ftslurm.code.survey import Survey, survey
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError, EnvironmentProblem
from ftslurm.run.directory import RunDir

GiveCode = Callable[[Config, RunDir], None]  # puts the code into a new run directory


def take(config: Config, run: RunDir) -> None:
    """Copy the code of a run into its directory.

    Raises:
        ConfigError: job.snapshot=copy, and it cannot be copied; or the script of a resumed run is gone.
        EnvironmentProblem: the files cannot be read or written.
    """
    if config.internal.parent is not None and config.job.script is not None and not Path(config.job.script).is_file():
        raise ConfigError(f"job.script={config.job.script}: no such file any more")
    found = survey(config)
    check(config, found)
    copying.keep(found, run.root)
    if found.git and (said := own_git.give(found.root, str(run.root / record.FOLDER))):
        print(f"ftslurm: code: {said}", file=sys.stderr)
    provenance.write(config, run.root, provenance.describe(found.root) if found.git else None)
    if found.note or (not found.root and config.job.snapshot == "auto"):
        print(f"ftslurm: code: {found.sentence()}", file=sys.stderr)


def inherit(before: Config, config: Config, parent: RunDir, new: bool) -> GiveCode | None:
    """Return what gives a run the copy of the one that it resumes, or None if it takes the code as it is now.

    Args:
        before, config: the configurations of the parent and of the new run.
        new: take the code as it is now.

    Raises:
        EnvironmentProblem: the record of its copy is damaged.
    """
    try:
        old = record.read(parent.root)
    except OSError as error:
        raise EnvironmentProblem(f"{error}; --new-code takes the code as it is now") from error
    if new or not old.root or _settings(before) != _settings(config):
        return None

    def hand_on(config: Config, run: RunDir) -> None:
        copying.hand_on(parent.root, run.root, old)
        provenance.write(config, run.root, provenance.inherited(parent.root))

    return hand_on


def _settings(config: Config) -> tuple[object, ...]:
    job = config.job
    return job.script, job.module, job.snapshot, job.snapshot_exclude


def check(config: Config, found: Survey) -> None:
    """Refuse a run whose code is to be copied and cannot be.

    Raises:
        ConfigError: the message has the reason.
    """
    if config.job.snapshot == "copy" and not found.root:
        raise ConfigError(f"job.snapshot=copy: the code cannot be copied: {found.why}")
