"""What of this run is still on this node? `python -m ftslurm.guard.probe` prints it as one line of JSON.

The controller starts it through an srun of its own when a worker falls silent: an answer at all means that the node is
there, and the letters say whether the step's processes are running (R, S), inside the kernel (D) or stopped (T).
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # see ftslurm/worker/__main__.py

import json
import os
from collections.abc import Mapping

from ftslurm.guard import processes


def look(environ: Mapping[str, str]) -> dict[str, str]:
    """For each step of this run on this node the states of its processes, a letter each; zombies and we are left out.

    A process that does not say on which node it is, where we know ours, is in no step: it is an srun, which has the
    environment of the step it started.
    """
    here, found = processes.node_of(environ), dict[str, str]()
    for pid, theirs in processes.of_run(environ.get("FTSLURM_RUN_DIR", "")):
        step, letter = theirs.get("FTSLURM_STEP"), processes.state(pid)
        elsewhere = here is not None and processes.node_of(theirs) != here
        if step and letter not in (None, "Z", "X") and not elsewhere and pid != os.getpid():
            found[step] = found.get(step, "") + str(letter)
    return found


if __name__ == "__main__":
    node = processes.node_of(os.environ) or os.uname().nodename
    print(json.dumps({"type": "look", "node": node, "steps": look(os.environ)}, separators=(",", ":")))
