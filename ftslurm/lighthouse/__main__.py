"""The program of the Lighthouse's Slurm step: `python -m ftslurm.lighthouse`, under the same guard as a worker."""

from ftslurm.guard import guard

if __name__ == "__main__":
    guard.main("ftslurm.lighthouse.server")
