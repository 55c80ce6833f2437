"""Standard output and error of a process whose output is a file: what a full disk does not take is left out.

Without this a `print` raises OSError, which ends a training or its controller. Whoever prints cannot make room.
"""

from __future__ import annotations

import io
import sys
from typing import Any


class _File(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return len(data)


def outlive() -> None:
    """Replace sys.stdout and sys.stderr; they are not buffered, so that a SIGKILL loses nothing."""
    for number, name in enumerate(("stdout", "stderr"), 1):
        old = getattr(sys, name)
        file: Any = _File(number, "w", closefd=False)
        setattr(sys, name, io.TextIOWrapper(file, old.encoding, old.errors, write_through=True))
