"""All ranks of a group act after the same step, even if they learn of the request at different steps."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz import numbers
from torch.distributed import PrefixStore, TCPStore

from ftslurm.checkpoint.consensus import AgreedStep

STEPS, RANKS = 12, 3


@pytest.fixture(scope="module")
def stores() -> Sequence[TCPStore]:
    """A connection to the group's store for each rank."""
    first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return [first, *(TCPStore("127.0.0.1", first.port, is_master=False) for _ in range(RANKS - 1))]


@pytest.mark.parametrize("seed", numbers(50, 200))
def test_it_is_due_on_all_ranks_after_the_same_step(seed: int, stores: Sequence[TCPStore]) -> None:
    dice = random.Random(seed)
    heard = [[dice.randrange(1, 5) for _ in range(RANKS)]]  # the step after which each rank learns of the request
    heard.append([max(heard[0]) + dice.randrange(3) for _ in range(RANKS)])  # of the second request
    vote = threading.Barrier(RANKS, timeout=20)  # as torchft's should_commit: no rank goes on before all have come
    due: list[list[int]] = [[] for _ in range(RANKS)]
    errors: list[BaseException] = []

    def train(rank: int) -> None:
        ranks: Any = SimpleNamespace(rank=rank, size=RANKS, store=PrefixStore(str(seed), stores[rank]))
        agreed = AgreedStep(ranks, "save")
        try:
            for step in range(1, STEPS + 1):
                vote.wait()
                wants = len(due[rank]) < 2 and step > heard[len(due[rank])][rank]
                if agreed.due(wants, step):
                    due[rank].append(step)
                    agreed.done()
        except BaseException as error:
            errors.append(error)
            vote.abort()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert due[0] == due[1] == due[2]
    first, second = due[0]
    assert max(heard[0]) < first <= max(heard[0]) + 3
    assert max(first, *heard[1]) < second <= max(first, *heard[1]) + 3


def test_a_rank_that_never_hears_of_it_holds_nobody_up_and_one_alone_asks_nobody(stores: Sequence[TCPStore]) -> None:
    ranks: Any = SimpleNamespace(rank=0, size=2, store=stores[0])
    agreed = AgreedStep(ranks, "save")
    assert not any(agreed.due(True, step) for step in range(1, 50))
    alone: Any = SimpleNamespace(rank=0, size=1, store=None)
    assert [AgreedStep(alone, "save").due(wants, 3) for wants in (True, False)] == [True, False]
