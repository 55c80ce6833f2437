"""Injects faults into one worker, for `ftslurm inject` and faults.plan."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from ftslurm.guard import processes

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}


def inflict(fault: str, pid: int) -> str | None:
    """Inject a fault other than `node`. Return why that is not possible, or None."""
    if processes.state(pid) in (None, "Z"):
        return "the worker has ended"
    try:
        os.kill(pid, SIGNALS[fault])
    except OSError as error:
        return str(error)
    return None


def lose_node(environ: dict[str, str]) -> NoReturn:
    """Simulate the loss of this node, as far as permissions allow.

    Kills the slurmstepd above this process and a slurmd above that. On a cluster where Slurm runs as the same user
    (as in a container), srun then gets no report of the end, as after a power failure. Where they belong to root they
    survive, and srun reports the end of the processes at once. Then kills every process of this run on this node with
    its descendants, and this process last.
    """
    me, run, node = os.getpid(), environ.get("FTSLURM_RUN_DIR", ""), processes.node_of(environ)
    if environ.get("FTSLURM_CLUSTER") == "slurm":
        for pid in _daemons(me):
            processes.kill(pid)
    for _ in range(20):  # some may be forking right now
        there = {pid for pid, theirs in processes.of_run(run) if node is not None and processes.node_of(theirs) == node}
        spared = {me, *(pid for pid, _ in processes.ancestors(me))}
        doomed = {below for pid in there for below in [pid, *processes.descendants(pid)]} - spared
        doomed = {pid for pid in doomed if processes.state(pid) not in (None, "Z")}
        if not doomed:
            break
        for pid in doomed:
            processes.kill(pid)
    processes.kill(me)
    os._exit(128 + signal.SIGKILL)


def _daemons(pid: int) -> list[int]:
    """Return the slurmstepd and slurmd that a process descends from, never process 1."""
    chain = list(processes.ancestors(pid))
    nearest = next((n for n, (_, name) in enumerate(chain) if name == "slurmstepd"), None)
    return [] if nearest is None else [above for above, name in chain[nearest:] if name in ("slurmstepd", "slurmd")]
