"""The stages of a step of training, as a worker notes them, its guard reports them and people read them."""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """What a worker is doing, as seen from torchft's Manager. The numbers are on the wire and in the journal."""

    COMPUTING = 0  # since the last commit, or since the script started
    SEEKING_QUORUM = 1  # includes fetching or giving the state when a group heals
    HAS_QUORUM = 2
    COLLECTIVE = 3  # has called the first allreduce of this step
    VOTING = 4  # has called should_commit
    SHUT_DOWN = 5  # the script has shut its Manager down: it trains no more, but may save or evaluate

    @property
    def doing(self) -> str:
        """What the worker does at this stage, for a sentence: "rank 0 is {doing}"."""
        return _DOING[self]

    @property
    def waits(self) -> bool:
        """Return whether the worker may be waiting for others."""
        return self in (Stage.SEEKING_QUORUM, Stage.COLLECTIVE, Stage.VOTING)


_DOING = (
    "computing",
    "asking for a quorum or healing",
    "computing, with a quorum",
    "in a collective",
    "voting on the commit",
    "at work after Manager.shutdown",
)
