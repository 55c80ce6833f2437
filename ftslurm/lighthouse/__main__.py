"""The program of the Lighthouse's Slurm step: `python -m ftslurm.lighthouse --...`, under the same guard as a worker.

With KEY=VALUE arguments, --help or none it runs a stand-alone Lighthouse (standalone.py).
"""

import json
import sys

from ftslurm.guard import guard

if __name__ == "__main__":
    if not any(word.startswith("--lighthouse=") for word in sys.argv[1:]):
        from ftslurm.lighthouse import standalone

        sys.exit(standalone.main(sys.argv[1:]))
    kind = json.loads(guard.options(sys.argv[1:]).lighthouse)["kind"]
    guard.main({"ftslurm": "ftslurm.lighthouse.server", "torchft": "ftslurm.lighthouse.stock"}[kind])
