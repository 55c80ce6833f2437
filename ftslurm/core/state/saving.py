"""A checkpoint that was asked for, as a value. What follows from it: rollover.py."""

from __future__ import annotations

from dataclasses import dataclass

GOES_ON = "goes_on"  # an Ending's outcome that becomes requeued, or stopped if the run cannot go on


@dataclass(frozen=True)
class SaveAsked:
    """All groups have been asked to save a checkpoint at once; the one that leads does."""

    step: int  # of this step or a later one
    until: float  # when it is no longer waited for
    error: str | None = None  # why it could not be saved
