"""One task of a replica group's step: `python -m ftslurm.worker`, started by srun or by the local launcher."""

import sys

if not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the working directory: a logging.py of the user's must not replace Python's during the imports

from ftslurm.guard import guard

if __name__ == "__main__":
    guard.main("ftslurm.worker.session")
