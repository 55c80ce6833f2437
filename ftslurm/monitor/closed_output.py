"""What to do when nobody reads the output any more: the terminal is closed, or `head` has read enough."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def discard(file: IO[Any] | None = None) -> None:
    """Discard from now on what is written to `file` (default: stdout); stdout and stderr both if they are one.

    Raises:
        OSError, ValueError: `file` is none of the operating system's.
    """
    broken = 1 if file is None else file.fileno()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2) if broken in (1, 2) and os.path.sameopenfile(1, 2) else (broken,):
        os.dup2(nowhere, number)
    os.close(nowhere)


def say(text: str, file: IO[str] | None = None) -> None:
    """Print at once, to stdout or to `file`; nothing happens if nobody reads it any more."""
    try:
        print(text, file=file, flush=True)
    except OSError:  # EPIPE, or EIO from a terminal that is gone
        discard(file)


def open_missing() -> None:
    """Give a process without stdin, stdout or stderr (`>&-`) ones that nobody reads."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
