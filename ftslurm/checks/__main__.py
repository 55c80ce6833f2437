"""`python -m ftslurm.checks`: the command ftslurm-preflight."""

import sys

from ftslurm.checks.shipped_check import main

if __name__ == "__main__":
    sys.exit(main())
