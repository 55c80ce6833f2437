"""The program of the Lighthouse's Slurm step: `python -m ftslurm.lighthouse`, under the same guard as a worker."""

import json
import sys

from ftslurm.guard import guard

if __name__ == "__main__":
    kind = json.loads(guard.options(sys.argv[1:]).lighthouse)["kind"]
    guard.main({"ftslurm": "ftslurm.lighthouse.server", "torchft": "ftslurm.lighthouse.stock"}[kind])
