"""`python -m ftslurm.beside RUN NUMBER PID`: runs submission/controller_process.py, for keepers of the version before.

A keeper that was running when ftslurm was upgraded starts its next controller with this command.
"""

from __future__ import annotations

import sys

from ftslurm.submission.controller_process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
