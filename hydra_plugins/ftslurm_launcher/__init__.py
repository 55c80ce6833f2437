"""What `ftslurm run -m` has Hydra use as its launcher: ftslurm submits each run of a sweep itself.

Hydra looks for plugins in this folder only, and imports them in every application of Hydra: nothing of ftslurm is
imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn


class FtslurmLauncher(BasicLauncher):
    """Hydra's own launcher, except that a function of ours runs the jobs (ftslurm/config/hydra_adapter.py)."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run combinations of overrides."""
        task: Any = self.task_function
        if not hasattr(task, "launch"):
            raise TypeError("this launcher is for `ftslurm run -m` alone: choose another one, as hydra/launcher=basic")
        returns: Sequence[JobReturn] = task.launch(job_overrides, initial_job_idx)
        return returns
