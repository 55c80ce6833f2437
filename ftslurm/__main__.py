"""`python -m ftslurm`."""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the working directory, see security/programs.py

from ftslurm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
