"""Given how a unit has exited so far, does it run again, and when?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ftslurm.config import RestartConfig
from ftslurm.core.model import Cause, Exit

LAUNCH_AGAIN_S = 2.0
HARMLESS = frozenset({Cause.OK, Cause.CANCELLED, Cause.TIME_LIMIT})  # exits that are no failure of the unit


@dataclass(frozen=True)
class RestartAt:
    time: float


@dataclass(frozen=True)
class GiveUp:
    reason: str


def judge(exits: Sequence[Exit], config: RestartConfig, launch_patience_s: float) -> RestartAt | GiveUp:
    """The restart policy for one unit.

    The first failure within the window is answered at once, the second after backoff_s, each later one after twice
    the wait before it, up to backoff_max_s. Failures older than window_s are forgotten (Erlang's supervisors call
    this the restart intensity). Asking twice gives the same answer: nothing is counted here.

    A launch that never reached a node, because slurmctld was away or a node was gone, is no failure of the group's:
    it is tried again every LAUNCH_AGAIN_S.

    Args:
        exits: every exit of the unit, oldest first; the last one is the failure to answer.
        launch_patience_s: for how long launches may fail in a row (health.start_timeout_s).
    """
    last = exits[-1]
    if config.policy == "never":
        return GiveUp("restart.policy=never")
    if not last.launched:
        in_a_row = list(takewhile(lambda e: not e.launched, reversed(exits)))
        if last.time - in_a_row[-1].time < launch_patience_s:
            return RestartAt(last.time + LAUNCH_AGAIN_S)
        return GiveUp(f"srun could not start it for {launch_patience_s:g} s (health.start_timeout_s)")
    failures = [e for e in exits if last.time - e.time < config.window_s and e.launched and e.cause not in HARMLESS]
    if len(failures) > config.max_per_group:
        return GiveUp(
            f"{len(failures)} failures within {config.window_s:g} s are more than restart.max_per_group="
            f"{config.max_per_group} allows"
        )
    return RestartAt(last.time + wait(len(failures), config))


def wait(failures: int, config: RestartConfig) -> float:
    """Seconds between the n-th failure of a window and the restart that answers it: 0, b, 2b, 4b, ... at most max."""
    if failures <= 1:
        return 0.0
    exponent = min(failures - 2, 40)  # 2**40 s is past every limit; larger powers overflow floats
    return min(config.backoff_s * 2.0**exponent, config.backoff_max_s)
