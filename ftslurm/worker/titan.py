"""`job.module=ftslurm.worker.titan`: runs worker/torchtitan.py, for a config.yaml written by the version before."""

from __future__ import annotations

from ftslurm.worker.torchtitan import main

if __name__ == "__main__":
    main()
