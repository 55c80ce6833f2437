"""The restart policy: from the earlier exits of a unit, decide whether and when it runs again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from ftslurm.config.schema import RestartConfig
from ftslurm.core.groups.verdict import kind
from ftslurm.core.state.model import Exit
from ftslurm.protocol.causes import Again, Blame, Cause

LAUNCH_AGAIN_S, LAUNCH_MAX_S = 2.0, 60.0  # the first waits after a refused launch, and the longest one
AT_FIRST = 5  # waits before they double: slurmctld restarts within a few seconds
WINDOW_S = 3600.0  # older failures do not count
BACKOFF_MAX_S = 60.0  # the longest wait for a restart


class RestartAt(NamedTuple):
    """The unit runs again."""

    time: float


class GiveUp(NamedTuple):
    """The unit runs no more."""

    reason: str


Decision: TypeAlias = RestartAt | GiveUp


def judge(exits: Sequence[Exit], config: RestartConfig, launch_patience_s: float) -> Decision:
    """Decide when a unit runs again, or that it does not. A function of the exits: it keeps no counters.

    The first failure leads to a restart at once, the second after backoff_s, each later one after twice the previous
    wait, up to BACKOFF_MAX_S. An attempt that has committed steps for BACKOFF_MAX_S was healthy: its failure counts as
    the first again. Failures older than WINDOW_S are ignored (Erlang's supervisors call this the restart intensity).

    A launch that never reached a node, because slurmctld was away or a node was gone, is no failure of the group:
    it is tried again after LAUNCH_AGAIN_S, later less often. An attempt that a user's command has ended is no failure
    either, nor one whose step did not answer: the next one follows at once, whatever the policy. One with another
    version of torchft than the other groups' is the last: a person decides.

    A cause that Slurm may still correct gives no unit up for the budget: the next failure does.

    Args:
        exits: every exit of the unit, oldest first; the last one is the failure to judge.
        launch_patience_s: how long launches may fail in a row (health.start_timeout_s).
    """
    last = exits[-1]
    if last.cause.row.again is Again.AT_ONCE:
        return RestartAt(last.time)
    if last.cause.row.again is Again.NEVER:
        return GiveUp("every attempt would have it, too")
    if config.max_per_group == 0:
        return GiveUp("restart.max_per_group=0")
    if not last.launched:
        in_a_row = list(takewhile(lambda e: not e.launched, reversed(exits)))
        if last.time - in_a_row[-1].time < launch_patience_s:
            return RestartAt(last.time + refused_wait_s(len(in_a_row), LAUNCH_MAX_S))
        return GiveUp(f"srun could not start it for {launch_patience_s:g} s (health.start_timeout_s)")
    recent = [e for e in exits if last.time - e.time < WINDOW_S]
    failures = [e for e in recent if _is_failure(e)]
    unsure = last.cause in (Cause.LEFT_ON_SIGTERM, Cause.UNKNOWN)  # jobs/queue.py may correct it
    if len(failures) > config.max_per_group + unsure:
        return GiveUp(
            f"{len(failures)} failures within {WINDOW_S:g} s are more than restart.max_per_group="
            f"{config.max_per_group} allows" + _hint(failures)
        )
    if (where := _same_error(failures)) and last.cause is Cause.LEFT_EARLY:
        return GiveUp(
            f"it has ended at the same step {where}: if that is the end (early stopping), leave out job.total_steps"
        )
    if where:
        return GiveUp(f"the same error at the same step {where}: it is the script, not the node")
    in_a_chain = 0
    for exit_ in recent:
        counts = _is_failure(exit_) and not _moves(exit_, recent)
        in_a_chain = (0 if exit_.healthy_s >= BACKOFF_MAX_S else in_a_chain) + counts
    return RestartAt(last.time + (0.0 if _moves(last, recent) else wait(in_a_chain, config)))


def refused_wait_s(refusals: int, most_s: float) -> float:
    """Return how long to wait after so many refused launches in a row."""
    return min(LAUNCH_AGAIN_S * 2.0 ** max(0, min(refusals - AT_FIRST, 10)), most_s)


def _moves(exit_: Exit, recent: Sequence[Exit]) -> bool:
    """Return whether the unit leaves the node because of this failure, so that it need not wait.

    It returns to a node with broken hardware only if there is no other; when it fails there again, it waits.
    """
    if exit_.cause.row.blame is not Blame.BROKEN:
        return exit_.cause is Cause.NODE_LOST
    return not any((e.cause, e.node) == (exit_.cause, exit_.node) and e.time < exit_.time for e in recent)


def _is_failure(exit_: Exit) -> bool:
    return exit_.launched and exit_.cause.row.failure


def _same_error(failures: Sequence[Exit]) -> str:
    """Return in which places the last failures are the same script error at the same step, or "".

    They are if they were on different nodes, if the last attempt has worked its way there again from a checkpoint, or
    if it is the third one in a row that has gone back and come no further. A lost connection is no error of the script:
    something else fails there.
    """
    if not failures:
        return ""
    last = failures[-1]
    same = list(takewhile(lambda e: (e.step, kind(e)) == (last.step, kind(last)), reversed(failures[:-1])))
    if not same or last.cause not in (Cause.USER_ERROR, Cause.LEFT_EARLY) or last.error is None or last.echo:
        return ""
    if last.restored is not None and (last.step or 0) > last.restored:
        return f"({last.step}), again after the checkpoint of step {last.restored}"
    if set(same[0].nodes).isdisjoint(last.nodes):
        return f"on {_on(same[0])} and on {_on(last)}"
    reached = last.restored if last.step is None else last.step
    return f"({reached}), for the third time" if reached is not None and len(same) > 1 else ""


def _hint(failures: Sequence[Exit]) -> str:
    """Return a hint for the user if all failures are hangs."""
    slow = all(e.cause is Cause.HANG for e in failures)
    return "; if it was only slow (an evaluation, a checkpoint), set a longer health.hang_after_s" if slow else ""


def _on(exit_: Exit) -> str:
    return exit_.node or ",".join(exit_.nodes)


def wait(failures: int, config: RestartConfig) -> float:
    """Return the seconds between the n-th failure of a window and its restart: 0, b, 2b, 4b, ... at most max."""
    if failures <= 1:
        return 0.0
    exponent = min(failures - 2, 40)  # 2**40 s exceeds every limit; larger powers overflow floats
    return min(config.backoff_s * 2.0**exponent, BACKOFF_MAX_S)
