"""A page of memory that a worker shares with its guard: where the worker is in its step, and numbers for either side.

It needs no lock and no message, so the guard can report where a worker is that is stuck.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import NamedTuple

from ftslurm.protocol.stages import Stage

_PLACE = struct.Struct("@QQQ")  # step and stage in one, when, and both mixed: a torn read does not add up
_SIZE = 4096
_LOG, _REACHED, _WANTED, _CORRUPT = 64, 72, 80, 88  # where the other numbers lie


class Place(NamedTuple):
    """A worker's step, its stage in it, and for how many seconds it has been there."""

    step: int
    stage: Stage
    since_s: float


class Position:
    """One worker's page. Made before the fork, shared by both sides.

    A transition costs 0.2 microseconds, with the hook that notes it 0.4 (measured). With several Managers in a process
    the last one to move is seen.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)
        self._word = -1

    def mark(self, step: int, stage: int) -> None:
        """Note the step and the stage, if they have changed."""
        word = step << 3 | stage
        if word != self._word:
            self._word = word
            now = time.monotonic_ns()
            _PLACE.pack_into(self._page, 0, word, now, word ^ now)

    @property
    def word(self) -> int:
        """Step and stage in one: another one whenever this process has moved."""
        return self._word

    @property
    def stage(self) -> int:
        """The stage noted last by this process; -1 before the first."""
        return self._word & 7 if self._word >= 0 else -1

    def read(self) -> Place | None:
        """What the worker has noted last; None before its script runs."""
        for _ in range(100):
            word, when, check = _PLACE.unpack_from(self._page)
            if word ^ when == check:  # else it was being written: look again
                return (
                    Place(word >> 3, Stage(min(word & 7, Stage.VOTING)), (time.monotonic_ns() - when) / 1e9)
                    if when
                    else None
                )
        return None

    @property
    def log(self) -> int:
        """The worker's file descriptor that stacks are dumped to; see guard/stacks.py."""
        return int(struct.unpack_from("@Q", self._page, _LOG)[0])

    @log.setter
    def log(self, descriptor: int) -> None:
        struct.pack_into("@Q", self._page, _LOG, descriptor)

    @property
    def reached(self) -> int:
        """The step below which no quorum may be, as the controller has said last; see worker/lineage_guard.py."""
        return int(struct.unpack_from("@Q", self._page, _REACHED)[0])

    @reached.setter
    def reached(self, step: int) -> None:
        struct.pack_into("@Q", self._page, _REACHED, step)

    @property
    def wanted(self) -> int:
        """The controller wants a checkpoint of this step or a later one; 0: none. See checkpoint/checkpointer.py."""
        return int(struct.unpack_from("@Q", self._page, _WANTED)[0])

    @wanted.setter
    def wanted(self, step: int) -> None:
        struct.pack_into("@Q", self._page, _WANTED, step)

    @property
    def corrupt(self) -> int:
        """A drill: one bit of the worker's weights is to be flipped; 0: no. See worker/comparison.py."""
        return int(struct.unpack_from("@Q", self._page, _CORRUPT)[0])

    @corrupt.setter
    def corrupt(self, wanted: int) -> None:
        struct.pack_into("@Q", self._page, _CORRUPT, wanted)
