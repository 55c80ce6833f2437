"""Tells the one process of a run that may log from all others, at each step."""

from __future__ import annotations

import os
from typing import Protocol


class Manager(Protocol):
    """The part of torchft.Manager that this folder uses."""

    def current_step(self) -> int:
        """Return the number of committed steps."""

    def participating_rank(self) -> int | None:
        """Return this group's rank among the participants, None for a group that heals or is a spare."""


def is_leader(manager: Manager) -> bool:
    """Return whether this process leads at the present step: rank 0 of the group whose participating rank is 0.

    One process of the run leads in each quorum. When its group dies, the next quorum has another leader. Before the
    first quorum nobody leads.
    """
    return os.environ.get("RANK", "0") == "0" and manager.participating_rank() == 0
