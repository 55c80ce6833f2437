"""The tracebacks of the ranks of one attempt: collected piece by piece; that of the rank that failed first is told."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

Traces: TypeAlias = tuple[tuple[int, str], ...]  # the rank, and the end of its traceback, in the order of arrival
LONGEST = 4000  # characters that are kept of a rank
MOST_RANKS = 4  # the later ones mostly raise because these have failed
LINES = 20  # lines that are told
STACKS = "ftslurm: stacks of "  # the beginning of stacks in a log (guard/stacks.py)
# As Python prints it in a traceback (a SyntaxError's names no function), and faulthandler in a stack.
_FRAME = re.compile(r'^[ |+]*File "([^"\n]+)", line (\d{1,9})(?:,? in (.+))?$', re.MULTILINE)
_OURS = re.compile(
    r"/ftslurm/(?:checkpoint|code|guard|tracking|worker)/\w+\.py$|^<(?:frozen (?:runpy|importlib)|string>$)"
)
_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3")


class Frame(NamedTuple):
    """One call of a traceback or a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}" + (f" in {self.function}" if self.function else "")

    @property
    def ours(self) -> bool:
        """Return whether it is ftslurm's own, or Python's way to the script: it says nothing about the script."""
        return _OURS.search(self.file) is not None

    @property
    def users(self) -> bool:
        """Return whether it is neither ours nor of an installed library."""
        return not self.ours and _LIBRARY.search(self.file) is None


def frames(text: str) -> list[Frame]:
    """Return the calls in a traceback or in stacks, in their order."""
    return [Frame(file, int(line), function) for file, line, function in _FRAME.findall(text)]


def blamed(traceback: str) -> Frame | None:
    """Return the innermost call of the user's code in a traceback; None: it has none."""
    mine = [frame for frame in frames(traceback) if frame.users]
    return mine[-1] if mine else None


def added(traces: Traces, rank: int, piece: str) -> Traces:
    """Return the tracebacks with one more piece. Those of several ranks arrive mixed."""
    known = dict(traces)
    if rank not in known and len(known) == MOST_RANKS:
        return traces
    known[rank] = (known.get(rank, "") + piece)[-LONGEST:]
    return tuple(known.items())


def told(traces: Traces, deciding: int | None) -> str | None:
    """Return the last lines of the deciding rank's traceback; None: it has none. Those of others are in their logs."""
    return "\n".join(dict(traces).get(-1 if deciding is None else deciding, "").splitlines()[-LINES:]) or None
