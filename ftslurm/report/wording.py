"""Words of the report for people: names of causes and phases."""

from __future__ import annotations

CAUSES = {
    "user_error": "the script failed",
    "code_changed": "the code had changed",
    "killed": "killed",
    "out_of_memory": "out of memory",
    "node_lost": "node lost",
    "hardware": "broken hardware",
    "network": "network error",
    "hang": "hang",
    "start_failed": "could not start",
    "start_timeout": "start took too long",
    "late_start": "did not answer, started elsewhere",
    "preempted": "preempted",
    "time_limit": "time limit",
    "lighthouse_lost": "lost the Lighthouse",
    "controller_lost": "controller crashed",
    "cancelled": "ended from outside",
    "requested": "moved on request",
    "unknown": "unknown",
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
    """Return a number for a person, as page.js does: three digits, all of them before the point, never an exponent."""
    if number < 0.01:
        return "<0.01" if number > 0 else "0"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def cause(name: str) -> str:
    """Return the words for a cause."""
    return CAUSES.get(name, name.replace("_", " "))


def phase(name: str) -> str:
    """Return the words for a phase of lost time."""
    return PHASES.get(name, name.replace("_", " "))
