"""The configuration of a run that is acted on."""

from __future__ import annotations

from ftslurm.config.compose import load
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files


def of_run(run: RunDir) -> Config:
    """A run's configuration, for who acts on the run: starts, leads, changes or ends it, or goes on with it.

    Raises:
        Distrusted: the run directory may be somebody else's work.
        ConfigError: its config.yaml is not there or is no configuration.
    """
    owned_files.check_own(run.acted_on())
    config = load(run.config)
    owned_files.check_way(run.root, config.run.trust, made=True)
    return config
