"""Distinguishes quorums whose ids repeat: torchft's own Lighthouse counts from 1 again when it is relaunched.

So an id comes back with other members, or later in the training. torchft compares only ids, with two defects:

* A member whose process group was built under this id keeps that group, although its members are others now.
* Members that build a new one meet in the store under the id (`torchft/ID/RANK`), which still has the addresses of the
  earlier quorum, and dial processes that are gone, until the process group's time-out (measured: 10 to 50 s; three
  groups, the Lighthouse and one group killed together, in two of ten tries). So it is in torchft 0.2.0; where process
  groups have handles (0.3), each handle has a place of its own in the store (closed_servers.py).

Every member of a quorum gets the same list of members and the same highest step, which together distinguish quorums of
one id.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

_NO_QUORUM = -1  # the quorum id of a Manager before its first quorum


class RepeatedIds:
    """Changes the answers of a Lighthouse whose ids repeat, before torchft uses them."""

    def __init__(self) -> None:
        self._members: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()  # of each Manager's last quorum

    def tell_apart(self, manager: Any, quorum: Any) -> None:
        """Have the manager build a new process group if the members have changed, and make the store address unique.

        Called in the quorum's thread, with the answer that the manager is about to use.
        """
        members = tuple(quorum.replica_ids)
        if quorum.quorum_id == manager._quorum_id and members != self._members.get(manager, members):
            manager._quorum_id = _NO_QUORUM
        self._members[manager] = members
        digest = hashlib.sha256("\n".join(members).encode()).hexdigest()[:16]
        quorum.store_address = f"{quorum.store_address}/{quorum.max_step}-{digest}"
