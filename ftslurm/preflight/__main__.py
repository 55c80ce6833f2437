"""`python -m ftslurm.preflight`."""

import sys

from ftslurm.preflight.shipped_check import main

if __name__ == "__main__":
    sys.exit(main())
