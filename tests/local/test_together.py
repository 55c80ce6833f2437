"""All ranks of a group act after the same step, and have the same errors; they exchange nothing but JSON."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from traceback import StackSummary
from types import SimpleNamespace
from typing import Any

import loaded
import pytest
from fuzz import numbers
from harness import SCRIPTS
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.checkpoint.api import CheckpointException

from ftslurm.checkpoint.consensus import AgreedStep, GroupFailed, RankGroup

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
        ranks: Any = SimpleNamespace(rank=rank, size=RANKS, store=PrefixStore(str(seed), stores[rank]), name="save")
        agreed = AgreedStep(ranks)
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
    ranks: Any = SimpleNamespace(rank=0, size=2, store=stores[0], name="save")
    agreed = AgreedStep(ranks)
    assert not any(agreed.due(True, step) for step in range(1, 50))
    alone: Any = SimpleNamespace(rank=0, size=1, store=None)
    assert [AgreedStep(alone).due(wants, 3) for wants in (True, False)] == [True, False]


# --- exchanges -------------------------------------------------------------------------------------------------------


def rank_group(rank: int, store: Any) -> RankGroup:
    """Return the group as torch.distributed would make it, with a thread as each rank."""
    group = RankGroup()
    group.rank, group.size, group.store, group.name = rank, RANKS, store, "ftslurm/ranks"
    return group


def on_all_ranks(stores: Sequence[TCPStore], name: str, work: Callable[[RankGroup], Any]) -> list[Any]:
    groups = [rank_group(rank, PrefixStore(name, store)) for rank, store in enumerate(stores)]
    with ThreadPoolExecutor(RANKS) as pool:
        return [done.result(30) for done in [pool.submit(work, group) for group in groups]]


def test_an_exchange_leaves_nothing_in_the_store_and_blocks_no_other_thread(stores: Sequence[TCPStore]) -> None:
    begun = threading.Event()

    def work(group: RankGroup) -> list[Any]:
        if group.rank == 1:
            begun.wait(20)
            time.sleep(0.3)
        if group.rank == 2:  # the same connection, beside the one that waits
            threading.Timer(0.1, lambda: (group.store.set("beside", "x"), begun.set())).start()
        return [group.agree([group.rank, None], list), group.agree(group.rank, sum)]

    before = stores[0].num_keys()
    done = on_all_ranks(stores, "exchange", work)
    assert [json.loads(json.dumps(agreed)) for agreed, _ in done] == [[[0, None], [1, None], [2, None]]] * RANKS
    assert [total for _, total in done] == [3, 3, 3]
    assert stores[0].num_keys() == before + 1


def test_an_error_on_one_rank_is_the_same_error_on_all(stores: Sequence[TCPStore]) -> None:
    def work(group: RankGroup) -> str:
        def fail() -> None:
            if group.rank:
                raise OSError(f"disk {group.rank % 2} is full")

        try:
            group.run(fail)
        except GroupFailed as error:
            return str(error)
        return ""

    said = on_all_ranks(stores, "errors", work)
    assert said == ["rank 1: OSError: disk 1 is full; rank 2: OSError: disk 0 is full"] * RANKS


def test_an_error_that_dcp_wraps_is_told_of_the_rank_that_has_it(stores: Sequence[TCPStore]) -> None:
    def work(group: RankGroup) -> str:
        def fail() -> None:
            if group.rank == 2:  # as a load without collectives fails: each rank is rank 0 to DCP
                raise CheckpointException("load", {0: (OSError("disk is gone"), StackSummary())})

        with pytest.raises(GroupFailed) as error:
            group.run(fail)
        return str(error.value)

    assert on_all_ranks(stores, "wrapped", work) == ["rank 2: OSError: disk is gone"] * RANKS


NO_OBJECTS = f"""
import runpy, sys
from torch.distributed import distributed_c10d

def unpickles(*_):
    print("UNPICKLED", flush=True)
    raise RuntimeError("an object came through the sockets of Gloo")

distributed_c10d._tensor_to_object = unpickles
sys.argv[0] = {str(SCRIPTS / "restoring.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_several_ranks_save_and_restore_without_an_object_that_gloo_carries(tmp_path: Path) -> None:
    for words in (["--save"], []):
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
        environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        started = [loaded.start(NO_OBJECTS, str(tmp_path), *words, RANK=str(rank), **environ) for rank in (0, 1)]
        done = [one.result() for one in started]
        assert [one.returncode for one in done] == [0, 0], done
        assert not any("UNPICKLED" in one.stdout for one in done), done
    (names,) = [sorted(path.name for path in folder.iterdir()) for folder in tmp_path.glob("data-*")]
    assert names == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "tree-0000.pickle",
        "tree-0001.pickle",
    ]
    assert [json.loads(one.stdout.partition("GOT ")[2].splitlines()[0])["step"] for one in done] == [5, 5]
