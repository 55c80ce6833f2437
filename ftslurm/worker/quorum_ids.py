"""Keeps quorums apart whose ids repeat: torchft's own Lighthouse counts from 1 again when it is relaunched.

So an id comes back with other members, or later in the training, and two things go wrong in torchft 0.2.0, which
compares ids alone:

* A member whose process group was built under this id keeps that group, though its members are others now.
* Those that do build one meet in the store under the id (`torchft/ID/RANK`), where the addresses of the earlier quorum
  still lie, and dial processes that are gone, until the process group's time-out (measured: 10 to 50 s; three groups,
  the Lighthouse and one group killed together, in two of ten tries).

Every member of a quorum is told the same members and the same highest step. Both tell quorums of one id apart.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

_NO_QUORUM = -1  # what a Manager that has had none takes for its quorum's id


class RepeatedIds:
    """Changes the answers of a Lighthouse whose ids repeat, before torchft uses them."""

    def __init__(self) -> None:
        self._members: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()  # of each Manager's last quorum

    def tell_apart(self, manager: Any, quorum: Any) -> None:
        """Have the manager build a new process group if the members have changed, under an address that is used once.

        Called in the quorum's thread, with the answer that the manager is about to use.
        """
        members = tuple(quorum.replica_ids)
        if quorum.quorum_id == manager._quorum_id and members != self._members.get(manager, members):
            manager._quorum_id = _NO_QUORUM
        self._members[manager] = members
        digest = hashlib.sha256("\n".join(members).encode()).hexdigest()[:16]
        quorum.store_address = f"{quorum.store_address}/{quorum.max_step}-{digest}"
