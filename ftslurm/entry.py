"""`python -m ftslurm.entry ROLE RUN`: runs submission/entry.py, for jobs that the version before has submitted.

Slurm keeps the command of such a job: a run that was queued or running when ftslurm was upgraded goes on with it.
"""

from __future__ import annotations

import sys

from ftslurm.submission.entry import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
