"""Tracebacks and stacks as a person reads them: the user's calls first, ftslurm's left out."""

from __future__ import annotations

import re
from pathlib import Path

from ftslurm.protocol.traces import STACKS, frames
from ftslurm.run.last_words import end_of

_END = 8 << 20  # bytes of a log, in which the last stacks are looked for
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x[0-9a-f]+ )", re.MULTILINE)


def told_lines(traceback: str) -> list[str]:
    """Return the lines of a traceback without ftslurm's calls, and without Python's marks below a line."""
    lines, ours = list[str](), False
    for line in traceback.rstrip().splitlines():
        call = frames(line)
        ours = call[0].ours if call else ours and line.startswith("    ")  # the source of that call
        if not ours and line.strip(" ^~|"):
            lines.append(line)
    return lines


def last_stacks(text: str) -> str:
    """Return the text of a log from its last stacks on; empty: it has none."""
    _, heading, stacks = text.rpartition(STACKS)
    return heading and heading + stacks


def read_stacks(log: Path, command: str, size: int) -> str:
    """Return the stacks that a command has asked for, of so many bytes; empty: they are not at the end of the log."""
    text = end_of(log, _END)
    begin = text.rfind(STACKS.encode(), 0, max(0, text.rfind(f"by ftslurm stacks {command!a}\n".encode())))
    return text[begin : begin + size].decode(errors="replace") if begin >= 0 else ""


def users_first(stacks: str) -> list[str]:
    """Return the lines of stacks as faulthandler writes them (guard/stacks.py), what matters to the user first.

    That is the main thread, which faulthandler writes last, then the others. ftslurm's calls are left out, torchft's in
    a thread that the user's code has called it in, and threads without any other call.
    """
    head, *threads = _THREAD.split(stacks)
    main, _, tail = (threads or [""])[-1].partition("\n\n")
    told = [_without_internals(thread) for thread in (main, *threads[:-1])]
    where = [f"its main thread is in {frame}" for frame in frames("\n".join(told[0])) if frame.users]
    heading, *kernel = head.splitlines() or [""]
    calls = (line for thread in told if len(thread) > 1 for line in thread)
    return [heading, *where[:1], *calls, *kernel, *tail.splitlines()]


def _without_internals(thread: str) -> list[str]:
    users = any(frame.users for frame in frames(thread))

    def hidden(line: str) -> bool:
        return any(frame.ours or (users and "/torchft/" in frame.file) for frame in frames(line))

    return [line for line in thread.splitlines() if line and not hidden(line)]
