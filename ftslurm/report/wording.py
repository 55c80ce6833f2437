"""Words of the report for people: names of causes and phases."""

from __future__ import annotations

from ftslurm.protocol.causes import Cause

CAUSES = {cause.value: cause.row.words for cause in Cause} | {  # and of lost time that no exit has caused
    "controller_lost": "controller crashed",
    "stopped": "the run was stopped",
    "first_start": "first start",
    "slow_step": "slow steps, no failure",
    "full_restart": "full restart",
}
PHASES = {
    "detect": "detect: until the failure was noticed",
    "end": "end: until its last process was gone",
    "wait": "wait: backoff, a free node",
    "earlier": "attempts that took no step",
    "start": "start: until every worker reported",
    "import": "import: torch, torchft",
    "assign": "assign: ranks, store",
    "join": "join: the script, to its first quorum",
    "commit": "commit: heal, first step",
    "stalled": "stalled: a step took far too long",
    "undone": "undone: repeated from a checkpoint",
    "given_up": "given up: no further attempt",
}


def amount(number: float) -> str:
    """Return a number for a person: three digits, all of them before the point, never an exponent."""
    if number < 0.01:
        return "<0.01" if number > 0 else "0"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def cause(name: str) -> str:
    """Return the words for a cause."""
    return CAUSES.get(name, name.replace("_", " "))


def phase(name: str) -> str:
    """Return the words for a phase of lost time."""
    return PHASES.get(name, name.replace("_", " "))
