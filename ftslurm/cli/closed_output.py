"""What to do when nobody reads the output any more: the terminal is closed, or `head` has read enough."""

from __future__ import annotations

import os
from typing import IO


def discard() -> None:
    """Discard from now on what is printed to stdout, and to stderr if it goes to the same place."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    same = os.path.sameopenfile(1, 2)
    os.dup2(nowhere, 1)
    if same:
        os.dup2(nowhere, 2)
    os.close(nowhere)


def say(text: str, file: IO[str] | None = None) -> None:
    """Print at once, to stdout or to `file`; nothing happens if nobody reads it any more."""
    try:
        print(text, file=file, flush=True)
    except OSError:  # EPIPE, or EIO from a terminal that is gone
        discard()
