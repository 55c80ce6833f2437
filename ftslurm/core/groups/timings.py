"""Durations of the parts of a group's recovery, in seconds, for the journal."""

from __future__ import annotations

from ftslurm.core.state.model import Marks

NAMES = ("earlier", "detect", "end", "wait", "start", "import", "assign", "join", "commit")


def since(moment: float | None, now: float) -> float | None:
    """Return the seconds since `moment`, rounded for the journal; None: the moment is not known."""
    return None if moment is None else round(now - moment, 3)


def phases(marks: Marks) -> dict[str, float | None]:
    """Return the durations of one attempt by NAMES; None: it did not reach that part, or nothing can be measured.

    earlier: failed attempts before this one, from the first failure on (None: this is the first); detect: fault to
    notice (known for drills, silence and hangs); end: notice to the last process of the failed attempt gone;
    wait: from then to the launch (backoff, a free node); start: to every task's first message; import: to
    all of them ready; assign: to the start of the script (ranks, store); join: to the first quorum; commit: to the
    first committed step. A warm standby has started and imported before it was needed: 0.
    """
    times = (marks.noticed, marks.ended, marks.launched, marks.hello, marks.ready, marks.begun, marks.quorum)
    tries = None if marks.away is None or marks.noticed is None else round(marks.noticed - marks.away, 3)
    out = {"earlier": tries or None, "detect": marks.detect_s}
    for name, start, end in zip(NAMES[2:], times, (*times[1:], marks.joined), strict=True):
        out[name] = None if start is None or end is None else round(max(0.0, end - start), 3)
    return out


def recovery_s(marks: Marks, now: float) -> float | None:
    """Return how long a group was away that works again at `now`; None: this is its first start."""
    return since(marks.noticed if marks.away is None else marks.away, now)
