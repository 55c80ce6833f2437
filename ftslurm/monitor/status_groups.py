"""What is known of one replica group, of its recoveries and of the Lighthouse: the parts of a RunStatus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ftslurm.core.state.model import LIVE, Phase
from ftslurm.monitor.verdict import ORDERLY

PHASES = ("detect", "end", "wait", "start", "import", "assign", "join", "commit")  # of a recovery, in their order


class Recovery(NamedTuple):
    """One restart of a group: which attempt answered which cause, and how long the group was away."""

    group: int
    attempt: int
    seconds: float | None  # from noticing the death to the first committed step; None: it never committed one
    cause: str  # the word of the journal: killed, node_lost, ...
    detail: str  # the same for a person: "killed (signal 9) on n2"
    phases: Mapping[str, float | None] | None = None  # what the seconds went into: detect, end, wait, start, ...


@dataclass(frozen=True)
class LighthouseStatus:
    phase: Phase = Phase.PENDING
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    ended: float | None = None  # when its last attempt ended


@dataclass(frozen=True)
class GroupStatus:
    """One replica group."""

    group: int
    phase: Phase = Phase.PENDING
    step: int | None = None  # the last committed step it reported, also of an attempt that is over
    participants: int | None = None  # how many groups its quorum has
    quorum_id: int | None = None
    sessions: int | None = None  # with a parameter server: a server's, those that are open; another's, all it has had
    attempt: int | None = None  # None: never launched
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    steps_per_s: float | None = None  # over the last 10 s
    last_error: str | None = None
    waiting_for: str | None = None
    joined: bool = False  # the current or last attempt has committed a step
    longest_gap_s: float | None = None  # between two of its own commits, within one attempt
    last_cause: str | None = None
    last_log: str | None = None  # of the attempt that ended with last_error
    last_evidence: tuple[str, ...] = ()  # the signs by which last_cause was decided
    last_traceback: str | None = None  # its end
    ended: float | None = None  # when its last attempt ended
    stepped: float | None = None  # when its step last rose
    still_s: float | None = None  # how long it has stood still, if it has: filled in by `aged`
    role: str | None = None  # in a run of groups that differ
    start: int = 0  # in which start of the controller's job it was launched last
    job: str | None = None  # the pilot or satellite in which it runs, ran last, or for which it waits
    leaves: bool = False  # `ftslurm scale` has taken it out of the run
    samples: tuple[tuple[float, int], ...] = ()  # (time, step) of this attempt, as far back as the rate needs

    @property
    def stepping(self) -> bool:
        """Whether it commits steps, as far as is known."""
        return self.phase is Phase.RUNNING and self.joined and self.still_s is None

    @property
    def live(self) -> bool:
        """Whether its step is one of the training's present state."""
        return self.joined and self.phase is not Phase.PENDING and self.phase is not Phase.FAILED

    @property
    def down(self) -> bool:
        """Whether its last attempt has failed and no other has been launched since."""
        ended = self.phase in (Phase.PENDING, Phase.FAILED)
        return ended and self.last_error is not None and self.last_cause not in ORDERLY


def scaled(groups: tuple[GroupStatus, ...], count: int, waiting_for: str) -> tuple[GroupStatus, ...]:
    """The groups once the run is to have so many: those beyond leave, new ones wait for their nodes."""
    there = tuple(replace(g, leaves=g.group >= count) for g in groups)
    new = tuple(GroupStatus(n, waiting_for=waiting_for) for n in range(len(groups), count))
    return without_left(there + new)


def without_left(groups: tuple[GroupStatus, ...]) -> tuple[GroupStatus, ...]:
    """The groups without those at the end that have left."""
    while groups and groups[-1].leaves and groups[-1].phase not in LIVE:
        groups = groups[:-1]
    return groups
