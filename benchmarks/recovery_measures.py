"""What one fault has cost a training, computed from the lines that its processes have written. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from goodput_measures import Commit


@dataclass(frozen=True)
class Cost:
    """What one fault has cost, as far as it has shown itself until some time."""

    back_s: float | None  # until every killed replica has committed in a new process; None: none was killed, or not all
    pause_s: float | None  # the longest pause of a replica that was not killed; None: all were
    restarted: int  # replicas that train in a new process without having been killed, or in another one after that
    undone: int  # steps that were committed before and had to be trained again


def cost(commits: Sequence[Commit], at: float, victims: Collection[int], until: float) -> Cost:
    """Compute what a fault at the time `at` has cost until another time.

    Args:
        commits: all that is known of the training, also from before the fault.
        victims: the replicas whose processes were killed.
        until: a replica that has not committed since counts as pausing until then.
    """
    known = {commit.pid for commit in commits if commit.time <= at}
    anew: dict[int, float] = {}  # replica -> its first commit in a new process
    new: set[tuple[int, int]] = set()  # replica and process
    for commit in commits:
        if at < commit.time <= until and commit.pid not in known:
            anew[commit.replica] = min(commit.time, anew.get(commit.replica, commit.time))
            new.add((commit.replica, commit.pid))
    others = sorted({commit.replica for commit in commits if commit.time <= at} - set(victims))
    back = max(anew[victim] for victim in victims) - at if victims and set(victims) <= set(anew) else None
    pauses = [_longest_pause(commits, replica, at, until) for replica in others]
    again = [replica for replica in victims if sum(one == replica for one, _ in new) > _ranks(commits, at, replica)]
    restarted = len(set(others) & set(anew)) + len(again)
    return Cost(back, max(pauses, default=None), restarted, _undone(commits, at, until))


def quiet_again(commits: Sequence[Commit], since: float, replicas: int, steps: int) -> bool:
    """Return whether every replica has committed so many steps since then, all of them together."""
    together = [commit for commit in commits if commit.time > since and commit.participants == replicas]
    return all(sum(commit.replica == replica for commit in together) >= steps for replica in range(replicas))


def _ranks(commits: Sequence[Commit], at: float, replica: int) -> int:
    """Return how many processes of a replica committed its last step before the fault: one for each rank."""
    last = max((commit.step for commit in commits if commit.replica == replica and commit.time <= at), default=0)
    return max(1, len({c.pid for c in commits if (c.replica, c.step) == (replica, last) and c.time <= at}))


def _longest_pause(commits: Sequence[Commit], replica: int, at: float, until: float) -> float:
    times = sorted(commit.time for commit in commits if commit.replica == replica and commit.time <= until)
    return max(b - a for a, b in itertools.pairwise([*times, until]) if b > at)


def _undone(commits: Sequence[Commit], at: float, until: float) -> int:
    """Return by how many steps trainings that began after the fault began below what had been committed.

    The ranks of a group of several have a lineage each, all of them known before the fault.
    """
    known = {commit.lineage for commit in commits if commit.time <= at}
    last, undone = 0, 0
    for commit in sorted(commits, key=lambda commit: commit.time):
        if commit.lineage in known:
            last = max(last, commit.step)
        elif commit.time <= until:
            known.add(commit.lineage)
            undone += max(0, last + 1 - commit.step)
            last = commit.step
    return undone
