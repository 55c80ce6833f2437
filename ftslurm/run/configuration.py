"""Load the configuration of a run in order to act on the run, not only to show it."""

from __future__ import annotations

from ftslurm.config.compose import load
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files


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
