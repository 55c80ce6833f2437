"""Runs worker/torchtitan.py for `job.module=ftslurm.worker.titan` in a config.yaml of the previous version."""

from __future__ import annotations

from ftslurm.worker.torchtitan import main

if __name__ == "__main__":
    main()
