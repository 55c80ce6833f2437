"""Load the configuration of a run in order to act on the run, not only to show it."""

from __future__ import annotations

from ftslurm.config.compose import load
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files, sharing


def to_steer(run: RunDir) -> Config:
    """Return the configuration for a command to the run: of this user's run, or of one that this user may steer.

    Raises:
        Distrusted: it is another user's run and not shared so, or another user may have written it.
        ConfigError: config.yaml is missing or invalid.
    """
    return load(run.config, own=False) if sharing.may_steer(run.inbox) else of_run(run)


def of_run(run: RunDir) -> Config:
    """Check that the run directory is trusted, and return its configuration.

    For callers that start, lead, change, end or continue the run.

    Raises:
        Distrusted: another user may have written the run directory.
        ConfigError: config.yaml is missing or invalid.
    """
    owned_files.check_own(run.acted_on())
    config = load(run.config)
    owned_files.check_way(run.root, config.run.trust, made=True)
    return config
