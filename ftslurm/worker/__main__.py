"""One task of a replica group's step: `python -m ftslurm.worker`, started by srun or by the local launcher."""

from ftslurm.guard import guard

if __name__ == "__main__":
    guard.main("ftslurm.worker.session")
