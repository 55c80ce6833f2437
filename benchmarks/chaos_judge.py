"""Check that no committed step was lost, redone or changed, by the digest that every rank writes after every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]


@dataclass
class Verdict:
    """The problems that the digests show.

    Each group decides for itself whether a step is committed. A group that dies at that moment may have committed a
    step that the others then repeat without it. No live rank has that state: it is counted, and is not a problem.
    """

    problems: list[str] = field(default_factory=list)
    died_with: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """One committed step of one rank."""

    era: int  # number of full restarts before its attempt was launched
    step: int
    rank: tuple[int, int, int]  # group, attempt, rank
    time: float
    digest: str
    last: bool  # the last line of this rank


def lines_of(events: Sequence[Event], steps: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Return all committed steps, sorted by time."""
    restarts = [int(e["seq"]) for e in events if e["event"] == "full_restart"]
    launched = {(e["group"], e["attempt"]): int(e["seq"]) for e in events if e["event"] == "step_launched"}
    raw = sorted(steps, key=lambda s: float(s["time"]))
    ends = {(s["group"], s["attempt"], s["rank"]): s["step"] for s in raw}
    lines = []
    for s in raw:
        rank = int(s["group"]), int(s["attempt"]), int(s["rank"])
        era = sum(seq < launched[rank[:2]] for seq in restarts)
        lines.append(Line(era, int(s["step"]), rank, float(s["time"]), str(s["digest"]), ends[rank] == s["step"]))
    return lines


def judge(events: Sequence[Event], steps: Iterable[Mapping[str, Any]]) -> Verdict:
    """Judge a run by its journal and by the lines of its digest files."""
    verdict = Verdict()
    eras: dict[int, list[Line]] = defaultdict(list)
    for line in lines_of(events, steps):
        eras[line.era].append(line)
    starts = [0, *(int(e["checkpoint_step"]) for e in events if e["event"] == "full_restart")]
    for era, lines in eras.items():
        kept = _digests(lines, events, verdict)
        _none_missing(starts[era], kept, verdict)
        _none_redone(kept, events, verdict)
    return verdict


def _digests(lines: list[Line], events: Sequence[Event], verdict: Verdict) -> list[Line]:
    """Check that each step has a single digest; return the lines without those that only dead ranks committed."""
    over = {(e["group"], e["attempt"]) for e in events if e["event"] == "step_exited"}
    by_step: dict[int, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        by_step[line.step][line.digest].append(line)
    dropped: set[Line] = set()
    for step, digests in by_step.items():
        if len(digests) == 1:
            continue
        dead = {d for d, who in digests.items() if all(w.last and w.rank[:2] in over for w in who)}
        for digest in dead:
            verdict.died_with.append(f"step {step} died with {[w.rank for w in digests[digest]]}")
            dropped |= set(digests[digest])
        if len(digests) - len(dead) > 1:
            told = {d[:8]: [w.rank for w in who] for d, who in digests.items() if d not in dead}
            verdict.problems.append(f"step {step} was committed with different weights: {told}")
    return [line for line in lines if line not in dropped]


def _none_missing(start: int, lines: list[Line], verdict: Verdict) -> None:
    done = {line.step for line in lines}
    missing = set(range(start + 1, max(done, default=start) + 1)) - done
    if missing:
        verdict.problems.append(f"nobody has committed {len(missing)} steps, the first is {min(missing)}")
    if early := done & set(range(start + 1)):
        verdict.problems.append(f"steps before the checkpoint of step {start} were committed again: {sorted(early)}")


def _none_redone(lines: list[Line], events: Sequence[Event], verdict: Verdict) -> None:
    """Check that no rank commits a step twice and that a new attempt begins after the steps committed at its launch."""
    at = {(e["group"], e["attempt"]): float(e["time"]) for e in events if e["event"] == "step_launched"}
    reached: list[tuple[float, int]] = []  # (time, step), both rising
    seen: dict[tuple[int, int, int], int] = {}
    for line in lines:
        if line.rank not in seen:
            before = max((step for when, step in reversed(reached) if when < at[line.rank[:2]]), default=0)
            if line.step <= before:
                verdict.problems.append(f"{line.rank} began with step {line.step}, {before} was committed before it")
        elif line.step <= seen[line.rank]:
            verdict.problems.append(f"{line.rank} has committed step {line.step} after {seen[line.rank]}")
        seen[line.rank] = line.step
        if not reached or line.step > reached[-1][1]:
            reached.append((line.time, line.step))
