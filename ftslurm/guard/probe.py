"""Prints the processes of this run on this node as one line of JSON: `python -m ftslurm.guard.probe`.

The controller starts it with a separate srun when a worker is silent. Any answer means that the node is up. The letters
show whether the processes of a Slurm step are running (R, S), inside the kernel (D) or stopped (T).
"""

import json
import os
from collections.abc import Mapping

from ftslurm.guard import processes


def processes_of_steps(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the process states of each Slurm step of this run on this node, one letter per process.

    Leaves out zombies, this process, and sruns. An srun has the environment of the step that it has started, but runs
    in none: its environment names no node, where that of this process does.
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
    print(json.dumps({"type": "look", "node": node, "steps": processes_of_steps(os.environ)}, separators=(",", ":")))
