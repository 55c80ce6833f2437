"""The tracebacks of the ranks of one attempt: collected piece by piece, and told so that each names its rank."""

from __future__ import annotations

from typing import TypeAlias

Traces: TypeAlias = tuple[tuple[int, str], ...]  # the rank, and the end of its traceback, in the order of arrival
LONGEST = 4000  # characters that are kept of a rank
MOST_RANKS = 4  # the later ones mostly raise because these have failed
LINES = 20  # lines of all ranks that are told


def added(traces: Traces, rank: int, piece: str) -> Traces:
    """Return the tracebacks with one more piece. Those of several ranks arrive mixed."""
    known = dict(traces)
    if rank not in known and len(known) == MOST_RANKS:
        return traces
    known[rank] = (known.get(rank, "") + piece)[-LONGEST:]
    return tuple(known.items())


def told(traces: Traces, deciding: int | None) -> str | None:
    """Return the ends of the tracebacks as at most LINES lines; None: there is none.

    A line `rank N:` is above each, unless the deciding rank's is the only one. That one is the last, and has all the
    lines that it needs; those that arrived first have what is left.
    """
    known = {rank: text.splitlines() for rank, text in traces if text.strip()}
    if list(known) == [deciding]:
        return "\n".join(next(iter(known.values()))[-LINES:])
    lines: list[str] = []
    for rank in sorted(known, key=lambda rank: rank != deciding):
        room = LINES - len(lines) - 1
        if room > 0:
            lines = [f"rank {rank}:", *known[rank][-room:], *lines]
    return "\n".join(lines) or None
