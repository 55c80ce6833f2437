"""Quorums of torchft's own Lighthouse that have the same id, because it was relaunched, are told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ftslurm.worker.quorum_abort import quorum_of
from ftslurm.worker.quorum_ids import RepeatedIds


class Manager:
    def __init__(self, quorum_id: int = -1) -> None:
        self._quorum_id = quorum_id


def answer(*members: str, quorum_id: int = 1, step: int = 5) -> Any:
    return SimpleNamespace(quorum_id=quorum_id, replica_ids=list(members), max_step=step, store_address="n1:4711")


def meets(manager: Manager, quorum: Any, repeats: RepeatedIds | None = None) -> str:
    """Return the store address at which a member meets the others."""
    (repeats or RepeatedIds()).tell_apart(manager, quorum)
    return f"{quorum.store_address}/torchft/{quorum.quorum_id}/0"


def test_all_members_of_a_quorum_meet_in_one_place_and_those_of_another_elsewhere() -> None:
    here = meets(Manager(), answer("a:1", "b:1"))
    assert here == meets(Manager(7), answer("a:1", "b:1"))
    others = [answer("a:1", "b:2"), answer("a:1", "b:1", step=6), answer("a:1", "b:1", quorum_id=2), answer("a:1")]
    assert len({here, *(meets(Manager(), other) for other in others)}) == 5
    assert quorum_of(here) == 1


def test_a_process_group_of_other_members_is_not_kept() -> None:
    repeats, manager = RepeatedIds(), Manager()
    meets(manager, answer("a:1", "b:1", "c:1"), repeats)
    manager._quorum_id = 1  # as torchft does
    meets(manager, answer("a:1", "b:1", "c:1", step=6), repeats)
    assert manager._quorum_id == 1  # the same one
    meets(manager, answer("a:1", "b:1", step=7), repeats)
    assert manager._quorum_id == -1
