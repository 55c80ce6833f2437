"""The cost of the Lighthouse does not grow with the square of the number of groups."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import manager_requests
import pytest

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.last_quorum import LastQuorum
from ftslurm.lighthouse.quorum import Member, Quorum, Rules
from ftslurm.lighthouse.registry import OVER, Book, Refused
from ftslurm.lighthouse.server import FEW, PAUSE_S, Server
from ftslurm.protocol import messages

RULES = Rules(min_replicas=1, join_timeout_s=3600.0, heartbeat_timeout_s=3600.0)


def member(number: int, step: int = 0) -> Member:
    return Member(f"group_{number}:uuid", store_address=f"host:{number}", step=step)


def test_many_requests_do_not_cost_as_many_decisions(tmp_path: Path) -> None:
    """200 requests arrive one after the other."""
    count = 200
    decisions: list[float] = []

    class Watched(Book):
        def form(self, now: float) -> Quorum | None:
            if self.asking:
                decisions.append(now)
            return super().form(now)

    async def join() -> list[bytes]:
        book = Watched(RULES, time.monotonic())
        server = Server(book, LastQuorum(str(tmp_path)), 3600.0, lambda _: None)
        for number in range(count):
            book.beat(member(number).replica_id, time.monotonic())
        tasks = []
        for number in range(count):
            request = manager_requests.quorum(member(number))
            tasks.append(asyncio.create_task(server.quorum(request)))
            await asyncio.sleep(0.0001)
        return await asyncio.wait_for(asyncio.gather(*tasks), 30)

    answers = asyncio.run(join())
    assert len(set(answers)) == 1
    assert len(protobuf.read_quorum(answers[0]).members) == count
    pauses = [after - before for before, after in itertools.pairwise(decisions)]
    assert min(pauses) >= PAUSE_S * count


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are due later than now."""

    timers = 0

    def call_at(self, when: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
        self.timers += when > self.time()
        return super().call_at(when, *rest, **more)


@pytest.mark.parametrize("count", [1, 2, 3, 16, FEW])
def test_no_timer_is_on_the_way_of_a_quorum(count: int, tmp_path: Path) -> None:
    """asyncio's timers take a millisecond at least, and every step of the training would wait for it."""

    async def train() -> None:
        book = Book(RULES, time.monotonic())
        server = Server(book, LastQuorum(str(tmp_path)), 3600.0, lambda _: None)
        for step in range(1, 6):
            for number in range(count):
                book.beat(member(number).replica_id, time.monotonic())
            requests = [manager_requests.quorum(member(number, step)) for number in range(count)]
            answers = await asyncio.gather(*map(server.quorum, requests))
            assert len(set(answers)) == 1

    loop = CountingLoop()
    loop.run_until_complete(train())
    loop.close()
    assert loop.timers == 0


def test_a_manager_that_hangs_up_just_after_it_is_announced_is_in_no_quorum(tmp_path: Path) -> None:
    async def run() -> None:
        book = Book(RULES, time.monotonic())
        server = Server(book, LastQuorum(str(tmp_path)), 3600.0, lambda _: None)
        server.order(messages.Member(0, 0, "host:0"))  # from here on unannounced stores have to wait
        asked = asyncio.create_task(server.quorum(manager_requests.quorum(member(1))))
        await asyncio.sleep(0.05)
        server.order(messages.Member(1, 0, "host:1"))
        asyncio.get_running_loop().call_soon(asked.cancel)
        await asyncio.wait([asked])
        assert asked.cancelled()
        assert not book.asking
        assert not server.waiting

    asyncio.run(run())


@pytest.mark.parametrize("last", ["known", "forgotten"])
def test_an_eviction_ends_all_ids_with_the_store_and_the_inherited_quorum(last: str) -> None:
    """No member gets a predecessor's quorum again once one of its members is gone, however that becomes known."""
    quorum = Quorum(7, tuple(member(number, 3) for number in range(3)))
    book = Book(RULES, 0.0, 1, 3, quorum)
    for number in range(3):
        book.announce(number, 0, f"host:{number}")
    book.told_all = True
    assert book.ask(member(0, 3), 0.0) == quorum
    if last == "forgotten":
        book._forget(member(2).replica_id)
    book.evict(2, 0)
    assert book.broken() == 7
    assert book.ask(member(2, 3), 0.0) == Refused(OVER, tell=False)
    assert not isinstance(book.ask(member(1, 3), 0.0), Quorum)


def test_an_eviction_spares_an_address_that_another_group_has_taken_over() -> None:
    book = Book(RULES, 0.0)
    book.announce(0, 0, "host:1")
    book.announce(1, 0, "host:1")
    book.evict(0, 0)
    assert book.stores == {"host:1": (1, 0)}
    book.evict(1, 0)
    assert book.stores == {}


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def test_ten_thousand_announcements_and_evictions_take_a_second() -> None:
    book = Book(RULES, 0.0)

    def all_come_and_go() -> None:
        for attempt in range(10):
            for number in range(1000):
                book.announce(number, attempt, f"host:{number}")
                book.ask(replace(member(number), replica_id=f"{number}:{attempt}"), 0.0)
            for number in range(1000):
                book.evict(number, attempt)

    assert seconds(all_come_and_go) < 2
    assert len(book.gone) == 10_000
