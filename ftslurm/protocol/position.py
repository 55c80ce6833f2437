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
_NUMBER = struct.Struct("@Q")


class Place(NamedTuple):
    """A worker's step, its stage in it, and for how many seconds it has been there."""

    step: int
    stage: Stage
    since_s: float


class _Number:
    """A number of a page, at this place."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, position: Position, _: object) -> int:
        return int(_NUMBER.unpack_from(position.page, self._at)[0])

    def __set__(self, position: Position, number: int) -> None:
        _NUMBER.pack_into(position.page, self._at, number)


class Position:
    """One worker's page. Made before the fork, shared by both sides.

    A transition costs 0.2 microseconds, with the hook that notes it 0.4 (measured). With several Managers in a process
    the last one to move is seen.
    """

    log = _Number(64)  # the worker's file descriptor that stacks are dumped to; see guard/stacks.py
    reached = _Number(72)  # the step below which no quorum may be, as told last; see worker/lineage_guard.py
    wanted = _Number(80)  # a checkpoint of this step or a later one is wanted; 0: none; see checkpoint/checkpointer.py
    corrupt = _Number(88)  # a drill: one bit of the worker's weights is to be flipped; 0: no; see worker/comparison.py
    may_leave = _Number(96)  # the scripts of all ranks of the group have ended; 0: not yet

    def __init__(self) -> None:
        self.page = mmap.mmap(-1, _SIZE)
        self._word = -1

    def mark(self, step: int, stage: int) -> None:
        """Note the step and the stage, if they have changed."""
        word = step << 3 | stage
        if word != self._word:
            self._word = word
            now = time.monotonic_ns()
            _PLACE.pack_into(self.page, 0, word, now, word ^ now)

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
            word, when, check = _PLACE.unpack_from(self.page)
            if word ^ when == check:  # else it was being written: look again
                return (
                    Place(word >> 3, Stage(min(word & 7, Stage.SHUT_DOWN)), (time.monotonic_ns() - when) / 1e9)
                    if when
                    else None
                )
        return None
