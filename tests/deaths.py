"""Which attempts of a run ended although nobody had killed them? Pure.

Runs survive crashes, so a check that kills must ask. The journal has the faults that ftslurm has injected. A signal
that a check has sent itself is a `Kill` of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]

# No check sends these: a process that ends of one has crashed.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
# What `ftslurm inject` and drills do to an attempt: kind -> permitted causes of its end, and the signal if it is one.
INJECTED: Mapping[str, tuple[frozenset[str], int | None]] = {
    "kill": (frozenset({"killed"}), signal.SIGKILL),
    "term": (frozenset({"killed"}), signal.SIGTERM),
    "stop": (frozenset({"hang"}), None),
    "corrupt": (frozenset({"diverged"}), None),
    "cancel": (frozenset({"cancelled"}), None),
    "node": (frozenset({"node_lost", "cancelled", "killed", "unknown"}), None),
    "lighthouse": (frozenset({"killed"}), None),
}


@dataclass(frozen=True)
class Kill:
    """An end that a check has caused."""

    unit: str  # as in the journal: group-0001, lighthouse
    attempt: int
    causes: frozenset[str] = frozenset({"killed"})
    number: int | None = signal.SIGKILL  # of the signal; None: any, or none

    def explains(self, ended: Event) -> bool:
        """Return whether a `step_exited` is this end."""
        number = ended.get("signal")
        return ended["cause"] in self.causes and (None in (self.number, number) or self.number == number)


def unplanned(events: Sequence[Event], kills: Iterable[Kill] = ()) -> list[str]:
    """Return a sentence for each end of a group, standby or Lighthouse that neither a kill nor a fault explains.

    An attempt that has succeeded has not died, nor has one that ftslurm ended because its run was over.
    """
    planned = {(kill.unit, kill.attempt): kill for kill in [*_injected(events), *kills]}
    last = {e["unit"]: e["attempt"] for e in events if e["event"] == "step_launched"}
    finished = any(e["event"] == "run_finished" for e in events)
    found = []
    for e in events:
        if e["event"] != "step_exited" or e["cause"] == "ok":
            continue
        at_the_end = finished and e["cause"] == "cancelled" and last.get(e["unit"]) == e["attempt"]
        kill = planned.get((e["unit"], e["attempt"]))
        if not at_the_end and (kill is None or not kill.explains(e)):
            found.append(_sentence(e))
    return found


def crashed(events: Sequence[Event]) -> list[str]:
    """Return a sentence for each end by a signal that only a crash sends, whoever was to be killed meanwhile."""
    return [_sentence(e) for e in events if e["event"] == "step_exited" and e.get("signal") in CRASHES]


def _injected(events: Sequence[Event]) -> list[Kill]:
    found = []
    for e in events:
        if e["event"] == "fault_injected":
            causes, number = INJECTED[e["kind"]]
            unit = "lighthouse" if e["kind"] == "lighthouse" else f"group-{e['group']:04d}"
            attempts = [one["attempt"] for one in events if one["event"] == "step_launched" and one["unit"] == unit]
            found += [
                Kill(unit, attempt, causes, number)
                for attempt in ([e["attempt"]] if e["attempt"] is not None else attempts)
            ]
    return found


def _sentence(e: Event) -> str:
    number = e.get("signal")
    how = f"{e['cause']} ({signal.Signals(number).name})" if number else str(e["cause"])
    error = f": {str(e['error'])[:200]}" if e.get("error") else ""
    return f"{e['unit']} attempt {e['attempt']} ended at step {e.get('step')}: {how}{error}"
