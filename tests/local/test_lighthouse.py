"""Our Lighthouse as a process, driven by torchft's own clients and managers, beside torchft's own Lighthouse."""

from __future__ import annotations

import inspect
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import manager_requests
import pytest
from fuzz import numbers
from lighthouse_process import LighthouseProcess
from torch.distributed import TCPStore
from torchft.coordination import LighthouseClient, LighthouseServer, ManagerClient, ManagerServer

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.quorum import Member

PATIENCE = timedelta(seconds=20)
NIGHTLY = "reconfigure_handle" in inspect.signature(ManagerClient._quorum).parameters


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LighthouseProcess]]:
    """A function that starts Lighthouses."""
    started: list[LighthouseProcess] = []

    def begin(**options: Any) -> LighthouseProcess:
        folder = tmp_path / f"lighthouse{len(started)}"
        folder.mkdir()
        started.append(LighthouseProcess(folder, **options))
        return started[-1]

    yield begin
    for lighthouse in started:
        lighthouse.kill()


class Group:
    """A group of one rank as the Lighthouse sees it: torchft's ManagerServer with a store and a ManagerClient."""

    def __init__(
        self,
        lighthouse: LighthouseProcess,
        number: int,
        attempt: int = 0,
        announce: bool = True,
        store: TCPStore | None = None,
    ) -> None:
        self.number, self.attempt = number, attempt
        self.store = store or TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.address = f"127.0.0.1:{self.store.port}"
        if announce:
            lighthouse.order("member", group=number, attempt=attempt, store=self.address)
        self.server = ManagerServer(
            replica_id=f"g{number}:{attempt}" + (":again" if store else ""),
            lighthouse_addr=lighthouse.url,
            hostname="127.0.0.1",
            bind="127.0.0.1:0",
            store_addr=self.address,
            world_size=1,
            heartbeat_interval=timedelta(milliseconds=100),
            connect_timeout=timedelta(seconds=10),
            quorum_retries=200,
        )
        self.client = ManagerClient(self.server.address(), connect_timeout=timedelta(seconds=10))

    def quorum(self, step: int, timeout: timedelta = PATIENCE, failures: int = 0) -> Any:
        handle = {"reconfigure_handle": f"handle of {self.number}"} if NIGHTLY else {}
        return self.client._quorum(
            group_rank=0,
            step=step,
            checkpoint_metadata="",
            shrink_only=False,
            timeout=timeout,
            init_sync=True,
            commit_failures=failures,
            **handle,
        )

    def stop(self) -> None:
        self.server.shutdown()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def together(pool: ThreadPoolExecutor, groups: list[Group], step: int) -> list[Any]:
    """Let all groups ask at once; return their answers."""
    return [future.result(30) for future in [pool.submit(group.quorum, step) for group in groups]]


def stopped(groups: list[Group]) -> None:
    for group in groups:
        group.stop()


def test_unmodified_managers_form_quorums_and_survivors_do_not_wait(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start()
    groups = [Group(lighthouse, number) for number in range(3)]
    for step in range(5):
        answers = together(pool, groups, step)
        assert {(a.quorum_id, a.replica_world_size, a.max_step) for a in answers} == {(1, 3, step)}
    groups[2].stop()  # heartbeats end, and the Lighthouse cannot know
    waiting = [pool.submit(group.quorum, 5) for group in groups[:2]]
    time.sleep(0.5)
    assert not any(future.done() for future in waiting)
    lighthouse.order("evict", group=2, attempt=0, store=groups[2].address)
    ordered = time.monotonic()
    answers = [future.result(10) for future in waiting]
    assert time.monotonic() - ordered < 2.0  # measured: 3 ms; the heartbeat time-out is 5 s
    assert {(a.quorum_id, a.replica_world_size) for a in answers} == {(2, 2)}

    back = Group(lighthouse, 2, attempt=1)
    first = pool.submit(back.quorum, 0)
    time.sleep(0.2)
    answers = [*together(pool, groups[:2], 6), first.result(10)]
    assert {(a.quorum_id, a.replica_world_size, a.max_step) for a in answers} == {(3, 3, 6)}
    assert [a.heal for a in answers] == [False, False, True]
    stopped([*groups[:2], back])


@pytest.mark.skipif(not NIGHTLY, reason="only torchft's nightly sends handles")
def test_the_handles_that_the_nightly_sends_reach_the_others(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start()
    groups = [Group(lighthouse, number) for number in range(3)]
    for step in range(2):
        for answer in together(pool, groups, step):
            assert answer.reconfigure_handles == ["handle of 0", "handle of 1", "handle of 2"]
    stopped(groups)


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.nightly)])
def test_killed_under_load_it_is_back_and_nobody_fails_and_ids_never_fall(
    start: Callable[..., LighthouseProcess], kills: int
) -> None:
    lighthouse = start()
    groups = [Group(lighthouse, number) for number in range(3)]
    over = threading.Event()
    meet = threading.Barrier(3)
    ids: list[list[int]] = [[], [], []]
    failed: list[BaseException] = []

    def train(group: Group) -> None:
        """Train: a step is a quorum and then an action of all members together."""
        try:
            step = 0
            while not over.is_set() or step % 50:
                ids[group.number].append(group.quorum(step).quorum_id)
                meet.wait(20)
                step += 1
        except BaseException as error:
            failed.append(error)
            meet.abort()

    threads = [threading.Thread(target=train, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    chance = random.Random(0)
    for _ in range(kills):
        time.sleep(0.05 + 0.3 * chance.random())
        answered = len(ids[0])
        lighthouse.kill()
        lighthouse.start()
        deadline = time.monotonic() + 20
        while len(ids[0]) <= answered + 1 and not failed and time.monotonic() < deadline:
            time.sleep(0.01)  # torchft dials more and more seldom: one killed faster than that is never reached
    over.set()
    for thread in threads:
        thread.join(30)
    assert not failed, f"{failed}\n{lighthouse.log.read_text()}"
    assert ids[0] == ids[1] == ids[2]  # each step was taken by all, with the same quorum: no answer was lost
    assert ids[0] == sorted(ids[0])
    stopped(groups)


def test_a_fresh_group_alone_gets_no_quorum_until_one_that_has_the_state_is_there(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start(heartbeat_timeout_ms=500)
    old = [Group(lighthouse, 0), Group(lighthouse, 1)]
    together(pool, old, 9)
    together(pool, old, 10)
    stopped(old)
    for group in old:
        lighthouse.order("evict", group=group.number, attempt=0)
    fresh = Group(lighthouse, 0, attempt=1)
    with pytest.raises(TimeoutError):
        fresh.quorum(0, timedelta(seconds=2))
    assert "step 10" in lighthouse.wait_for("refused")["reason"]
    waiting = pool.submit(fresh.quorum, 0)
    time.sleep(0.1)
    lighthouse.order("new_history", step=0)
    assert waiting.result(10).max_step == 0
    fresh.stop()


def test_managers_with_an_unknown_store_or_of_a_dead_attempt_are_refused(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start()
    real = Group(lighthouse, 0)
    stranger = Member("s", "a", "10.0.0.1:1", 10**6)
    with grpc.insecure_channel(lighthouse.url.removeprefix("http://")) as wire:
        ask = wire.unary_unary(f"/{protobuf.SERVICE}/Quorum")
        first: Future[bytes] = ask.future(manager_requests.quorum(stranger), timeout=30)
        for step in range(20):
            assert real.quorum(step).replica_world_size == 1
        assert first.exception(30).code() == grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[union-attr]
        assert real.quorum(20).max_step == 20
        lighthouse.order("evict", group=0, attempt=0)
        time.sleep(0.2)
        dead = ask.future(manager_requests.quorum(Member("other", "a", real.address, 21)), timeout=30)
        assert dead.exception(20).code() == grpc.StatusCode.FAILED_PRECONDITION
    real.stop()


def test_who_brings_a_store_of_its_own_is_told_what_to_do_and_so_is_the_controller(
    start: Callable[..., LighthouseProcess],
) -> None:
    lighthouse = start()
    lighthouse.order("member", group=0, attempt=0, store="127.0.0.1:29500")
    own = manager_requests.quorum(Member("toy_0", "a", "127.0.0.1:12345", 0))
    with grpc.insecure_channel(lighthouse.url.removeprefix("http://")) as wire:
        ask = wire.unary_unary(f"/{protobuf.SERVICE}/Quorum")
        errors = [call.exception(20) for call in [ask.future(own, timeout=30) for _ in range(3)]]
    for text in [str(error.details()) for error in errors] + [lighthouse.wait_for("refused")["reason"]]:  # type: ignore[union-attr]
        assert "'127.0.0.1:12345'" in text
        assert "store_addr" in text
        assert "lighthouse=torchft" in text
    assert len([report for report in lighthouse.reports if report["type"] == "refused"]) == 1


def test_a_poisonous_step_is_refused_with_the_reason_and_nothing_of_it_is_kept(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start()
    real, other = Group(lighthouse, 0), Group(lighthouse, 1)
    together(pool, [real, other], 7)
    lighthouse.order("member", group=2, attempt=0, store="127.0.0.1:29500")
    with grpc.insecure_channel(lighthouse.url.removeprefix("http://")) as wire:
        ask = wire.unary_unary(f"/{protobuf.SERVICE}/Quorum")
        for step in (2**62, 2**53, 10**6, 9, 2**62):
            poison = manager_requests.quorum(Member("g2:0", "a", "127.0.0.1:29500", step))
            error = ask.future(poison, timeout=30).exception(20)
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert f"step {step}" in error.details()
    assert f"step {2**62}" in lighthouse.wait_for("refused")["reason"]
    assert len([report for report in lighthouse.reports if report["type"] == "refused"]) == 1
    assert {answer.max_step for answer in together(pool, [real, other], 8)} == {8}
    lighthouse.kill()
    lighthouse.start()
    assert {answer.max_step for answer in together(pool, [real, other], 9)} == {9}
    lighthouse.wait_for_line("highest step 8")
    stopped([real, other])


def test_a_second_manager_of_a_process_takes_part_once_the_first_has_ended(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start(heartbeat_timeout_ms=1000)
    first, other = Group(lighthouse, 0), Group(lighthouse, 1)
    together(pool, [first, other], 3)
    with grpc.insecure_channel(lighthouse.url.removeprefix("http://")) as wire:
        second = manager_requests.quorum(Member("g0:second", "a", first.address, 4))
        waiting = wire.unary_unary(f"/{protobuf.SERVICE}/Quorum").future(second, timeout=60)
        assert {answer.replica_world_size for answer in together(pool, [first, other], 4)} == {2}
        assert waiting.exception(30).code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "g0:0" in waiting.exception(0).details()
    assert "second manager" in lighthouse.wait_for("refused")["reason"]
    first.stop()
    again = Group(lighthouse, 0, store=first.store)
    answers = together(pool, [again, other], 5)
    assert {(answer.replica_world_size, answer.max_step) for answer in answers} == {(2, 5)}
    stopped([again, other])


def test_a_request_that_comes_before_the_controllers_word_is_held(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start()
    first, late = Group(lighthouse, 0), Group(lighthouse, 1, announce=False)
    first.quorum(0)
    waiting = pool.submit(late.quorum, 0)
    time.sleep(0.3)
    lighthouse.order("member", group=1, attempt=0, store=late.address)
    time.sleep(0.1)
    assert first.quorum(1).replica_world_size == 2
    assert waiting.result(10).heal
    stopped([first, late])


def test_the_request_of_a_client_that_has_hung_up_is_void(start: Callable[..., LighthouseProcess]) -> None:
    lighthouse = start(heartbeat_timeout_ms=60_000, join_timeout_ms=60_000)
    client = LighthouseClient(lighthouse.url, timedelta(seconds=10))
    assert len(client.quorum("a", PATIENCE, "", "", 0, 1, False).participants) == 1
    client.heartbeat("b")
    with grpc.insecure_channel(lighthouse.url.removeprefix("http://")) as wire:
        call = wire.unary_unary(f"/{protobuf.SERVICE}/Quorum").future(manager_requests.quorum(Member("b")))
        time.sleep(0.2)
        call.cancel()
    time.sleep(0.2)
    assert [p.replica_id for p in client.quorum("a", PATIENCE, "", "", 1, 1, False).participants] == ["a"]


@pytest.mark.parametrize("count", [600, pytest.param(3000, marks=pytest.mark.nightly)])
def test_malformed_and_hostile_messages_do_no_harm(start: Callable[..., LighthouseProcess], count: int) -> None:
    lighthouse = start()
    group = Group(lighthouse, 0)
    assert group.quorum(1).quorum_id == 1
    chance = random.Random(1)
    real = manager_requests.quorum(Member("g0:0", "a", "b:1", 5, 1))
    address = lighthouse.url.removeprefix("http://")
    with grpc.insecure_channel(address) as wire:
        methods = [wire.unary_unary(f"/{protobuf.SERVICE}/{name}") for name in ("Quorum", "Heartbeat")]
        calls = []
        for number in range(count):
            data = bytearray(real if number % 3 == 0 else chance.randbytes(chance.randrange(200)))
            data[chance.randrange(len(data) or 1) :] = chance.randbytes(chance.randrange(20))
            calls.append(methods[number % 2].future(bytes(data), timeout=10))
        calls += [m.future(b"\x0a" + b"\xff" * size, timeout=10) for m in methods for size in (60_000, 300_000)]
        for method in ("Kill", "Status", "../Quorum"):
            calls.append(wire.unary_unary(f"/{protobuf.SERVICE}/{method}").future(b"", timeout=10))
        codes = {call.code() for call in calls}
        assert codes <= {
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.UNAVAILABLE,  # what grpc answers when a thousand requests are pending
        }
    host, _, port = address.rpartition(":")
    for junk in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5000,
        chance.randbytes(10_000),
    ):
        with socket.create_connection((host, int(port))) as plain:
            plain.sendall(junk)
    assert group.quorum(2).max_step == 2
    assert lighthouse.process.poll() is None
    assert "Traceback" not in lighthouse.log.read_text()
    group.stop()


@pytest.mark.nightly
def test_memory_stays_bounded_over_many_heartbeats_of_many_ids(start: Callable[..., LighthouseProcess]) -> None:
    lighthouse = start()
    lighthouse.order("member", group=0, attempt=0, store="127.0.0.1:29500")
    sizes = []

    def beat(turn: int, thread: int) -> None:
        client = LighthouseClient(lighthouse.url, timedelta(seconds=10))
        for number in range(2000):
            client.heartbeat(f"{'x' * 500}{turn}-{thread}-{number}")

    for turn in range(5):  # 40,000 in all
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda thread, turn=turn: beat(turn, thread), range(4)))
        sizes.append(lighthouse.memory_mb())
    assert sizes[-1] < sizes[0] + 30, sizes
    assert sizes[-1] < 200, sizes


def test_a_group_that_has_committed_a_step_of_its_own_heals_from_the_others(
    start: Callable[..., LighthouseProcess], pool: ThreadPoolExecutor
) -> None:
    lighthouse = start(join_timeout_ms=2000)
    groups = [Group(lighthouse, number) for number in range(3)]
    together(pool, groups, 5)
    others = groups[:2]  # they could not commit, which only the third could
    for future in [pool.submit(group.quorum, 5, failures=1) for group in others]:
        assert future.result(10).replica_world_size == 2
    answers = together(pool, groups, 6)  # torchft takes equal steps for equal weights
    assert {a.max_step for a in answers} == {6}
    assert [a.heal for a in answers] == [False, False, True]
    stopped(groups)


# --- the same histories with both Lighthouses ----------------------------------------------------------------------


def replay(url: str, seed: int, fewest: int) -> list[tuple[Any, ...]]:
    """Replay seeded rounds in which groups ask, die, return and are late; return each group's answers and their times.

    All live groups send heartbeats. Times are far from the time-outs, so that both Lighthouses see the same order of
    events, and no request is abandoned: torchft's Lighthouse keeps requests whose client is gone, and because of one
    has formed a quorum of some live groups without waiting for the others.
    """
    chance = random.Random(seed)
    clients = [LighthouseClient(url, timedelta(seconds=10)) for _ in range(4)]
    names = [f"g{i}:{chance.randrange(100)}" for i in range(4)]
    living = set(range(4))
    waiting: dict[int, Future[Any]] = {}  # a group that asks just after a round waits for the next one
    reached = 0  # no group is beyond this step
    members: set[int] = set()  # with shrink_only only these ask: a group outside is shut out for good
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            for i in sorted(living):
                clients[i].heartbeat(names[i])

    beats = threading.Thread(target=beat)
    got: list[tuple[Any, ...]] = []
    with ThreadPoolExecutor(8) as pool:
        for i in living:
            clients[i].heartbeat(names[i])
        beats.start()
        try:
            for turn in range(9):
                if 0 < turn < 7 and not waiting and chance.random() < 0.3 and len(living) > fewest:
                    dead = chance.choice(sorted(living))
                    living.discard(dead)
                    members.discard(dead)
                elif 0 < turn < 7 and chance.random() < 0.3 and len(living) < 4:
                    back = chance.choice(sorted({*range(4)} - living))
                    names[back] = f"g{back}:{chance.randrange(100)}"
                    clients[back].heartbeat(names[back])
                    living.add(back)
                    members.discard(back)
                asking = sorted(living - waiting.keys())
                chance.shuffle(asking)
                asking.sort(key=lambda i: i in members)  # otherwise the others may be gone when a newcomer asks last
                shrink = turn > 0 and members == living and chance.random() < 0.2
                for i in asking:
                    step = max(0, reached - (chance.random() < 0.2))
                    fields = (f"a{i}", f"h:{i}", step, i + 1, shrink)
                    waiting[i] = pool.submit(clients[i].quorum, names[i], timedelta(seconds=60), *fields)
                    time.sleep(0.02 if chance.random() < 0.7 else 0.15)
                wait(waiting.values(), timeout=3.0)
                for i in [i for i, future in sorted(waiting.items()) if future.done()]:
                    quorum = waiting.pop(i).result()
                    members.add(i)
                    # No steps: ours lowers that of a group which may have taken one alone.
                    seen = tuple((p.replica_id, p.address, p.store_address) for p in quorum.participants)
                    got.append((turn, i, quorum.quorum_id, seen))
                    reached = max(reached, *(p.step + 1 for p in quorum.participants))
        finally:
            over.set()
            beats.join()
    return got


@pytest.mark.parametrize("seed", numbers(3, 12))
def test_the_same_history_gives_the_same_quorums_as_with_torchfts_own(
    start: Callable[..., LighthouseProcess], seed: int
) -> None:
    fewest = 1 + seed % 3
    options = {"min_replicas": fewest, "join_timeout_ms": 1500, "heartbeat_timeout_ms": 700}
    stock = LighthouseServer(bind="127.0.0.1:0", quorum_tick_ms=20, **options)
    ours = start(**options)
    try:
        with ThreadPoolExecutor(2) as pool:
            theirs = pool.submit(replay, f"http://127.0.0.1:{stock.address().rpartition(':')[2]}", seed, fewest)
            assert replay(ours.url, seed, fewest) == theirs.result()
    finally:
        stock.shutdown()


def test_what_a_peer_sends_does_not_fill_the_log(start: Callable[..., LighthouseProcess]) -> None:
    lighthouse = start()
    lighthouse.wait_for_line("serving at")
    size = lighthouse.log.stat().st_size
    text = (0).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\x1b]0;owned\x07" + b"x" * 16_000
    goaway = len(text).to_bytes(3, "big") + b"\x07" + bytes(5) + text
    with socket.create_connection(("127.0.0.1", lighthouse.options["port"])) as peer:
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        for _ in range(1000):
            peer.sendall(goaway)
    client = LighthouseClient(lighthouse.url, PATIENCE)
    client.heartbeat("a")
    assert lighthouse.log.stat().st_size == size
