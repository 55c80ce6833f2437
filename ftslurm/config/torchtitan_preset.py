"""What job=torchtitan needs: its module, and what that runs."""

from __future__ import annotations

MODULE = "ftslurm.worker.torchtitan"
TRAINER = "torchtitan.train"
INSTALL = (
    "pip install 'ftslurm[torchtitan]' into the environment of the workers (job.python), beside a GPU build of torch"
)
