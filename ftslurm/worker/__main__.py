"""One task of a replica group's step: `python -m ftslurm.worker`, started by srun or by the local launcher."""

import os

from ftslurm.guard import guard
from ftslurm.security import programs

if __name__ == "__main__":
    if programs.ARCHIVE:  # what the script starts imports the same ftslurm
        theirs = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = programs.ARCHIVE + (os.pathsep + theirs if theirs else "")
    guard.main("ftslurm.worker.session")
