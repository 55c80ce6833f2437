"""`python -m ftslurm`."""

import sys

from ftslurm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
