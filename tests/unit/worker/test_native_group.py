"""The store in which torch's own process groups meet: it moves with the quorum, and keeps nothing of the last one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchft import process_group

from ftslurm.protocol.position import Position
from ftslurm.worker import patch_fit
from ftslurm.worker.group_end import natives
from ftslurm.worker.native_group import native_group
from ftslurm.worker.quorum_abort import BrokenQuorums

NEW = hasattr(dist.ProcessGroup, "reconfigure") and hasattr(process_group, "reconfigure_with_store")
pytestmark = pytest.mark.skipif(not NEW, reason=f"needs torch 2.14 and torchft 0.3: {patch_fit.versions()}")
SOON = timedelta(seconds=20)


class Members:
    """Process groups that meet in quorum after quorum."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quorums = BrokenQuorums([], Position())
        self.pool = ThreadPoolExecutor(count)
        self.groups: list[Any] = []
        for number in range(count):
            monkeypatch.setenv("REPLICA_GROUP_ID", str(number))
            self.groups.append(native_group("gloo", SOON))

    def meet(self, quorum: int, server: Any, *members: int) -> list[float]:
        """Form a quorum in the store of a server; return the members' sums of their numbers."""
        groups = [self.groups[one] for one in members]
        handles = [group.get_reconfigure_handle() for group in groups]
        return list(self.pool.map(lambda one: self._sum(one, quorum, server.port, handles), members))

    def _sum(self, one: int, quorum: int, port: int, handles: list[str]) -> float:
        group, options = self.groups[one], process_group.ReconfigureOptions()
        options.uuid, options.handles, options.timeout = quorum, handles, SOON
        native = natives[group]
        native.address = f"127.0.0.1:{port}/torchft/{quorum}/0"
        self.quorums.joined.quorum = quorum
        native.meet(group, self.quorums, options)
        tensor = torch.tensor([float(one)])
        group.allreduce([tensor], dist.ReduceOp.SUM).wait()
        return float(tensor)


def server() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_store_keeps_the_keys_of_one_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    members, store = Members(3, monkeypatch), server()
    counts = []
    for quorum in range(1, 9):
        assert members.meet(quorum, store, 0, 1, 2) == [3.0] * 3
        counts.append(store.num_keys())
    assert len(set(counts[1:])) == 1, counts  # none is deleted before the second quorum
    assert all(f"/{quorum}/" in key for key in store.list_keys())


def test_the_loss_of_a_store_costs_nobody_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group that hosts it is gone, and the others meet in the store of another one."""
    members, store = Members(3, monkeypatch), server()
    assert members.meet(1, store, 0, 1, 2) == [3.0] * 3
    del store  # the server ends
    other = server()
    assert members.meet(2, other, 1, 2) == [3.0] * 2
    assert members.meet(3, other, 2, 0, 1) == [3.0] * 3
