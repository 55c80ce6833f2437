"""The states of a run, and the faults that can be done to it: words that the command line must know at once."""

from __future__ import annotations

from typing import Literal, get_args

# waiting: its job is in Slurm's queue, or its controller starts. silent: it should run, and its controller is not
# heard. unknown: it has not begun, and Slurm does not say how its job stands. lost: its controller is gone, and nobody
# has written an end.
State = Literal["running", "waiting", "silent", "unknown", "lost", "succeeded", "failed", "stopped", "unreadable"]
STATES: tuple[State, ...] = get_args(State)
GOING = STATES[:4]  # a controller may still write to the journal
OVER = STATES[5:8]
WITHOUT_GROUPS = 4  # the exit code of a run that has succeeded without some of its groups


def exit_code(outcome: str | None, missing: object) -> int:
    """Return the exit code of a run that is over.

    Args:
        outcome: how it has ended.
        missing: the groups that were given up, or have never taken a step.
    """
    return 1 if outcome != "succeeded" else WITHOUT_GROUPS if missing else 0


FAULTS = {
    "kill": "SIGKILL to one rank, as the kernel or an admin would do it",
    "term": "SIGTERM to one rank",
    "stop": "SIGSTOP to one rank: it stands still until its group is found to hang (health.hang_after_s)",
    "corrupt": "one bit of one rank's weights flips: do the others find it? (health.compare_every)",
    "node": "the node of one rank is lost: all that this run has there stops at once (locally it is back at once)",
    "cancel": "scancel of the whole step of one group; a local run has none and refuses",
    "lighthouse": "SIGKILL to the Lighthouse; no group should notice more than a pause",
}
