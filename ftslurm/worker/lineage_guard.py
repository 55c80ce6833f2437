"""Ends a worker before it takes a step with weights that are not the training's.

torchft trusts the members of a quorum: the one with the highest step has the state, and all others copy it. So a group
that has just been launched, with random weights at step 0, trains alone, or becomes the donor of others, if no group
with a higher step is in its quorum. The controller knows the run's step. It sends it when the script starts (`floor`)
and with every ping (`reached`, for a worker that started earlier, or was stopped meanwhile). ftslurm's own Lighthouse
refuses such a quorum; this check works with any Lighthouse: the worker ends when it gets the answer, before a gradient
is averaged or a step is committed.

The module closes four more ways to wrong weights (T: src/manager.rs, torchft/manager.py):

* A group's step is that of the last of its ranks to ask for the quorum (T: "TODO check step"). If one rank has healed
  and another could not, the group may count as healed, and the other would train on with its own weights.
* With an asynchronous quorum, should_commit() loads the fetched state. A script that starts the next quorum without it
  (it skips a step, it accumulates gradients) keeps its own weights at its donor's step.
* With start_quorum(allow_heal=False) no group heals, but a group that is behind steps all the same, with its own
  weights.
* A script that loads a checkpoint by itself, which is not this run's, has the highest step, and all others copy it.

docs/lighthouse.md lists the orders of events; tests/local/test_history_in_torchft.py shows what torchft does in each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakSet


class LineageGuard:
    """Judges the answers that the Managers of this process get (run_manager.py).

    Args:
        refuse: called with the reason why no step may be taken, in the quorum's thread; must not return.
        reached: returns the lowest step that a quorum may have now; 0: it is not known.
    """

    def __init__(self, refuse: Callable[[str], object], reached: Callable[[], int] = lambda: 0) -> None:
        self.refuse = refuse
        self.reached = reached
        self.floor = 0  # lowest step that a quorum may have; the controller sends it when the script starts
        self.managers: WeakSet[Any] = WeakSet()  # those that have asked for a quorum

    def check(self, manager: Any, allow_heal: bool, quorum: Any) -> None:
        """Check an answer, in the quorum's thread, before torchft uses it."""
        alone = quorum.max_world_size == 1 < quorum.replica_world_size
        newcomer = manager._quorum_id < 0  # this is its first quorum
        why = self.judge(manager._step, quorum.max_step, quorum.heal and allow_heal, ahead=newcomer and alone)
        if why is not None:
            self.refuse(why)

    def judge(self, step: int, max_step: int, heal: bool, ahead: bool = False) -> str | None:
        """Return why no step may be taken in a quorum, or None.

        Args:
            step: this rank's own step.
            max_step: the highest step of the quorum's members.
            heal: whether this rank will fetch the state from another member.
            ahead: whether this is the rank's first quorum, and all other groups in it will fetch the state from its
                group.
        """
        heals, reached = os.environ.get("FTSLURM_HEALS") == "1", self.reached()
        floor = max(self.floor, reached)
        # Each Manager counts its own steps, and the controller knows only the highest.
        if len(self.managers) < 2 and max_step < floor:
            text = f"the run has reached step {floor} or more, nobody in this quorum is beyond {max_step}"
            if not heals and reached <= max_step:
                text = f"the run starts from the checkpoint of step {floor}, the script at step {max_step}"
            return f"{text}: it would begin a new history"
        if ahead and heals and step == max_step > 0:
            return (
                f"it has begun at step {step}, where all other groups are behind that: a checkpoint that it has loaded "
                f"is not of this history, and they would copy it. With FTSLURM_HEALS=1 a script should load none"
            )
        if not heal and step != max_step:
            return (
                f"this rank is at step {step} and its group counts as being at step {max_step}: it could not heal "
                f"when the group's other ranks did, or the script forbids it (allow_heal=False), and it would train on "
                f"with weights of its own"
            )
        return None
