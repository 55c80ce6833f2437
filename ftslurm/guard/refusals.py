"""What was refused is said once of each kind: a stranger must not be able to fill the log with it."""

from __future__ import annotations

import os
from contextlib import suppress


class Refusals:
    """What one guard has refused."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def tell(self, kind: str, words: str) -> None:
        """Say it, into the step's log, if nothing of its kind has been said."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            with suppress(OSError):
                os.write(2, f"ftslurm: refused: {words} (more of the kind are not told)\n".encode())
