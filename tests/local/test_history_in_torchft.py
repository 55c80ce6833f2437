"""Orders of events in which torchft trains on with weights that are not the training's, and our guard against them.

Real Managers in threads of one process use torchft's own Lighthouse. Each order is tested twice: torchft alone poisons
the training, and the guard in the worker (ftslurm/worker/lineage_guard.py) refuses it. When a test without the guard
fails, torchft is fixed and that part of the guard can be removed. docs/lighthouse.md has the table.

A group's model is one number, about 1000 in group A, 2000 in B, 3000 in C, that grows a little with every step: it
shows the origin of the weights.
"""

from __future__ import annotations

import copy
import importlib
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar
from weakref import WeakSet

import pytest
from watched import manager_class, watchers

from ftslurm.worker.lineage_guard import LineageGuard

os.environ.setdefault("RUST_LOG", "warn")
torch = pytest.importorskip("torch")
torchft = pytest.importorskip("torchft")
_DummyWork = importlib.import_module("torchft.work")._DummyWork

SILENT = timedelta(hours=1)  # between heartbeats: such a group is alive only while it asks, as one that is stopped
EXPIRES_S = 0.5
A, B, C = 1000.0, 2000.0, 3000.0
BOTH = pytest.mark.parametrize("guarded", [False, True], ids=["torchft alone", "guarded"])


class RefusedError(Exception):
    """Raised by the guard in these tests; in a worker the guard ends the process."""


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class World:
    """One Lighthouse and the groups of a test."""

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        Sums.meetings.clear()
        self.threads = ThreadPoolExecutor(16)
        self.serve()

    def serve(self, port: int = 0, min_replicas: int = 1) -> None:
        from torchft.coordination import LighthouseServer

        self.lighthouse = LighthouseServer(
            f"127.0.0.1:{port}",
            min_replicas,
            join_timeout_ms=2000,
            quorum_tick_ms=10,
            heartbeat_timeout_ms=int(EXPIRES_S * 1000),
        )
        self.port = int(self.lighthouse.address().rpartition(":")[2])

    def serve_again(self) -> None:
        """Restart the Lighthouse without any state."""
        self.lighthouse.shutdown()
        until(self.has_served_again)

    def has_served_again(self) -> bool:
        try:
            self.serve(self.port)
        except RuntimeError:  # its predecessor still has the port
            return False
        return True

    def group(
        self, weights: float, *, guard: LineageGuard | None = None, ranks: int = 1, **options: object
    ) -> list[Rank]:
        """Start a fresh group with so many ranks."""
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        name = {A: "a", B: "b", C: "c"}[weights]
        address = f"http://127.0.0.1:{self.port}"
        made = [
            self.threads.submit(Rank, store, name, weights, address, rank, ranks, guard, dict(options))
            for rank in range(ranks)
        ]
        self.ranks += (group := [one.result(20) for one in made])
        until(lambda: group[0].manager._logger._replica_id in self.status())  # its first heartbeat has arrived
        return group

    def together(self, *calls: object) -> list[object]:
        """Call each in its own thread, as groups do; return the results or raise the first error."""
        return [one.result(20) for one in [self.threads.submit(call) for call in calls]]

    def meet(self, *ranks: Rank, **options: object) -> None:
        """Let ranks ask for a quorum one after the other: joining ranks first, those that train already last."""
        for number, rank in enumerate(ranks, 1):
            rank.manager.start_quorum(**options)
            groups = [r.store for r in ranks[:number]]
            complete = {r.store for r in ranks if groups.count(r.store) == r.ranks}
            if number < len(ranks):
                self.until_asking(len(complete))

    def train(self, *ranks: Rank, steps: int) -> None:
        """Train in lockstep until each rank is at this step."""
        self.meet(*ranks)
        self.together(*[rank.finish_step for rank in ranks])
        self.together(*[lambda rank=rank: rank.train(steps) for rank in ranks])

    def until_asking(self, groups: int) -> None:
        """Wait until so many requests for a quorum are pending."""
        until(lambda: f"[{groups}/" in self.status())

    def status(self) -> str:
        """Return the Lighthouse's status page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as page:
            return page.read().decode()

    def close(self) -> None:
        for rank in self.ranks:
            rank.die()
        self.lighthouse.shutdown()
        self.threads.shutdown(wait=False)


class Sums(importlib.import_module("torchft.process_group").ProcessGroup):
    """Sums over groups that live in one process. Gloo cannot: it holds the GIL while it waits for its peers."""

    meetings: ClassVar[dict[tuple[str, int], list[object]]] = {}
    changed = threading.Condition()

    def __init__(self, patience_s: float) -> None:
        super().__init__(0, 1)
        self.patience_s = patience_s
        self.group, self.members, self.count = "", 1, 0

    def configure(self, store_addr: str, *place: object) -> None:  # torchft 0.2
        _, _, self.members, *_ = place
        self.group, self.count = store_addr, 0

    def get_reconfigure_handle(self) -> str:  # torchft 0.3, as the next one
        return str(id(self))

    def reconfigure(self, opts: object) -> object:
        self.group, self.members, self.count = f"{opts.uuid} {opts.handles}", len(opts.handles), 0
        return _DummyWork(None)

    def allreduce(self, tensors: list[object], _: object) -> object:
        self.count += 1
        with self.changed:
            met = self.meetings.setdefault((self.group, self.count), [])
            met.append(tensors[0].clone())
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(met) == self.members, self.patience_s):
                raise TimeoutError(f"{len(met)} of {self.members} groups came")
        tensors[0].copy_(sum(met))
        return _DummyWork(tensors)

    def size(self) -> int:
        return self.members

    def getBackendName(self) -> str:  # noqa: N802 torch's name
        return "sums"

    def abort(self, errored: bool = True) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def errored(self) -> None:
        return None


class Rank:
    """One rank of a replica group: a Manager and a model."""

    def __init__(
        self,
        store: object,
        name: str,
        weights: float,
        address: str,
        rank: int,
        ranks: int,
        guard: LineageGuard | None,
        options: dict[str, object],
    ) -> None:
        kind = torchft.Manager
        if guard is not None:
            guard = copy.copy(guard)  # in a worker there is one rank
            guard.managers = WeakSet()
            kind = manager_class(watchers(lineage=guard))
        self.ranks = ranks
        self.weights = torch.tensor([weights])
        self.gradient = 1.0
        self.alive = True
        self.store = store
        self.manager = kind(
            pg=Sums(options.pop("patience_s", 5)),
            load_state_dict=lambda state: self.weights.copy_(state["weights"]),
            state_dict=lambda: {"weights": self.weights.clone()},
            quorum_timeout=timedelta(seconds=5),
            quorum_retries=50,
            rank=rank,
            world_size=ranks,
            store_addr="127.0.0.1",
            store_port=store.port,  # type: ignore[attr-defined]
            lighthouse_addr=address,
            replica_id=name,
            hostname="127.0.0.1",
            **{
                "min_replica_size": 1,
                "heartbeat_interval": timedelta(milliseconds=30),
                "timeout": timedelta(seconds=5),
                # As many parts as RunManager's: some groups here have torchft's own Manager.
                "checkpoint_transport": torchft.checkpointing.http_transport.HTTPTransport(
                    timeout=timedelta(seconds=5), num_chunks=8
                ),
                **options,
            },
        )

    @property
    def step(self) -> int:
        return self.manager.current_step()

    @property
    def begun_as(self) -> float:
        """The initial weights of the group that the current weights stem from."""
        return round(self.weights.item(), -3)

    def train(self, steps: int) -> None:
        while self.step < steps:
            self.take_a_step()

    def take_a_step(self) -> bool:
        self.manager.start_quorum()
        return self.finish_step()

    def finish_step(self) -> bool:
        gradient = torch.tensor([self.gradient])
        self.manager.allreduce(gradient).wait()
        committed = self.manager.should_commit()
        if committed:
            self.weights += gradient
        return committed

    def resume(self, step: int) -> None:
        """Load a checkpoint of the training that A began, as a script does."""
        self.weights.fill_(A + step)
        self.manager.load_state_dict({"step": step, "batches_committed": step})

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.manager.shutdown(wait=False)


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.1")
    if hasattr(torchft.checkpointing.http_transport, "socket"):
        transport = SimpleNamespace(**(vars(socket) | {"gethostname": lambda: "127.0.0.1"}))
        monkeypatch.setattr(torchft.checkpointing.http_transport, "socket", transport)
    monkeypatch.setenv("FTSLURM_HEALS", "1")
    world = World()
    yield world
    world.close()


def guard_if(guarded: bool, floor: int) -> LineageGuard | None:
    """Return the guard of a worker whose script began when the run was one step beyond the floor."""

    def refuse(reason: str) -> None:
        raise RefusedError(reason)

    if not guarded:
        return None
    history = LineageGuard(refuse)
    history.floor = floor
    return history


def trains_on(rank: Rank, steps: int, guarded: bool, reason: str = "begin a new history") -> None:
    """Check that a rank trains alone with its initial weights, or (guarded) is refused before its first step."""
    before = rank.step
    if guarded:
        with pytest.raises(RefusedError, match=reason):
            rank.train(steps)
        assert rank.step == before
    else:
        rank.train(steps)
        assert rank.step == steps


# --- no holder of the state is in the quorum ------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("mode", ["DYNAMIC", "FIXED_WITH_SPARES"])
def test_the_last_holder_dies_or_finishes_before_a_fresh_group_has_healed(world, mode, guarded):
    options = {"world_size_mode": torchft.manager.WorldSizeMode[mode]}
    (a,) = world.group(A, **options)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2), **options)
    a.die()
    trains_on(b, 5, guarded)
    assert b.begun_as == B


@BOTH
def test_nothing_is_lost_if_the_donor_dies_after_the_fetch_and_before_the_commit(world, guarded):
    (a,) = world.group(A)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2))
    world.meet(b, a)
    world.together(a.manager.wait_quorum, b.manager.wait_quorum)
    a.die()
    assert b.step == 3
    assert b.weights.item() == B  # fetched, not loaded
    b.manager.report_error(RuntimeError("the neighbour hung up"))
    assert b.finish_step() is False
    b.train(5)
    assert b.begun_as == A


@BOTH
def test_a_spare_that_has_healed_takes_over_with_the_state(world, guarded):
    options = {"world_size_mode": torchft.manager.WorldSizeMode.FIXED_WITH_SPARES}
    (a,) = world.group(A, **options)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2), **options)
    world.train(b, a, steps=5)
    assert b.manager.participating_rank() is None
    a.die()
    b.train(7)
    assert (b.begun_as, b.manager.participating_rank()) == (A, 0)


@BOTH
@pytest.mark.parametrize("forgotten", [False, True], ids=["stopped", "the Lighthouse was restarted"])
def test_a_fresh_group_overtakes_the_absent_last_holder_and_becomes_its_donor(world, forgotten, guarded):
    (a,) = world.group(A, heartbeat_interval=SILENT)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2), heartbeat_interval=SILENT)
    if forgotten:
        world.serve_again()
    else:
        time.sleep(EXPIRES_S + 0.1)
    trains_on(b, 5, guarded)
    if guarded:
        time.sleep(EXPIRES_S + 0.1)
        a.train(6)
        assert a.begun_as == A
    else:
        world.train(a, b, steps=7)
        assert (a.begun_as, b.begun_as) == (B, B)  # A's state is gone, and nothing has failed


@BOTH
def test_two_fresh_groups_are_quorum_enough_for_min_replicas_2(world, guarded):
    world.lighthouse.shutdown()
    world.serve(min_replicas=2)
    a, c = world.group(A) + world.group(C)
    world.train(a, c, steps=3)
    guards = [guard_if(guarded, 2) for _ in range(2)]
    fresh = world.group(B, guard=guards[0]) + world.group(C, guard=guards[1])
    a.die()
    c.die()
    world.together(*[lambda r=r: trains_on(r, 2, guarded) for r in fresh])
    assert all(rank.begun_as == B for rank in fresh) is not guarded  # C has copied B's


@BOTH
def test_a_stopped_group_trains_on_and_both_go_on_with_different_weights(world, guarded):
    reached = [0]
    watch = guard_if(guarded, 0)
    if watch is not None:
        watch.reached = lambda: reached[0]  # by the controller's pings: A's script began before anybody's first step
    a, b = world.group(A, guard=watch, heartbeat_interval=SILENT) + world.group(B, heartbeat_interval=SILENT)
    world.train(a, b, steps=3)
    time.sleep(EXPIRES_S + 0.1)  # A is stopped
    b.gradient = 100.0
    b.train(6)
    reached[0] = b.step - 1
    time.sleep(EXPIRES_S + 0.1)  # then B is, and A goes on
    trains_on(a, 6, guarded)
    if not guarded:
        world.meet(b, a)
        world.together(a.finish_step, b.finish_step)  # both are at step 6: no group ever heals
        assert a.step == b.step == 7
        assert a.weights.item() != b.weights.item()


@BOTH
def test_a_group_that_begins_slowly_and_finds_the_other_away_begins_anew(world, guarded):
    watch = guard_if(guarded, 0)  # its script began when nobody had committed a step
    (a,) = world.group(A, heartbeat_interval=SILENT)
    a.train(3)
    time.sleep(EXPIRES_S + 0.1)
    if watch is not None:
        watch.reached = lambda: 2
    (b,) = world.group(B, guard=watch)
    trains_on(b, 5, guarded)


# --- checkpoints ----------------------------------------------------------------------------------------------------


@BOTH
def test_after_a_restart_of_all_nobody_has_resumed(world, guarded, monkeypatch):
    monkeypatch.setenv("FTSLURM_HEALS", "0")
    (b,) = world.group(B, guard=guard_if(guarded, 5))
    trains_on(b, 2, guarded, "starts from the checkpoint of step 5, the script at step 0")


@BOTH
def test_after_a_restart_of_all_it_is_enough_that_one_has_resumed(world, guarded, monkeypatch):
    monkeypatch.setenv("FTSLURM_HEALS", "0")
    b, c = world.group(B, guard=guard_if(guarded, 5)) + world.group(C, guard=guard_if(guarded, 5))
    c.resume(5)
    world.meet(b, c)
    world.together(b.finish_step, c.finish_step)
    assert (b.step, b.begun_as, c.begun_as) == (6, A, A)


@BOTH
def test_an_old_checkpoint_is_a_silent_rollback_when_nobody_else_lives(world, guarded):
    (b,) = world.group(B, guard=guard_if(guarded, 9))
    b.resume(5)
    trains_on(b, 7, guarded)


@BOTH
def test_an_old_checkpoint_does_no_harm_when_somebody_lives(world, guarded):
    (a,) = world.group(A)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2))
    b.resume(2)
    b.weights.fill_(B)
    world.train(b, a, steps=5)
    assert b.begun_as == A


@BOTH
def test_a_checkpoint_of_another_run_becomes_the_donor_of_all(world, guarded):
    (a,) = world.group(A, connect_timeout=timedelta(seconds=2))
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2))
    b.manager.load_state_dict({"step": 100, "batches_committed": 100})
    world.meet(b, a)
    if guarded:
        with pytest.raises(RefusedError, match="is not of this history"):
            b.manager.wait_quorum()
        b.die()
        assert (a.step, a.begun_as) == (3, A)
    else:
        assert world.together(a.finish_step, b.finish_step) == [True, True]
        assert (a.step, a.weights.item()) == (101, B + 1)


# --- inside a group -------------------------------------------------------------------------------------------------


@BOTH
def test_of_two_ranks_one_has_healed_and_the_other_trains_on_with_weights_of_its_own(world, guarded):
    donors, (good, bad) = half_healed(world, guarded)
    for donor in donors:
        donor.die()
    ask_in_order(bad, good)  # the last request counts: the group's step is 3
    if guarded:
        with pytest.raises(RefusedError, match="rank is at step 0 and its group counts as being at step 3"):
            bad.manager.wait_quorum()
        return
    assert world.together(good.finish_step, bad.finish_step) == [True, True]
    assert (good.weights.item(), bad.weights.item()) == (A + 4, B + 1)


@BOTH
def test_if_the_rank_that_could_not_heal_asks_last_the_whole_group_heals_again(world, guarded):
    donors, (good, bad) = half_healed(world, guarded)
    ask_in_order(good, bad)
    world.until_asking(1)
    for donor in donors:
        donor.manager.start_quorum()
    world.together(*[rank.finish_step for rank in (*donors, good, bad)])
    assert {rank.begun_as for rank in (*donors, good, bad)} == {A}


def half_healed(world: World, guarded: bool) -> tuple[list[Rank], list[Rank]]:
    """Return two groups of two ranks; rank 0 of the second has healed from the first, rank 1 could not."""
    patient = {"ranks": 2, "timeout": timedelta(seconds=15)}  # rank 1 of the first waits in vain, rank 0 for its vote
    donors = world.group(A, **patient)
    world.train(*donors, steps=3)
    good, bad = world.group(B, guard=guard_if(guarded, 2), **patient)

    def fail(**_: object) -> None:
        raise ConnectionError("the donor's server hung up")

    transport = bad.manager._checkpoint_transport
    receive, transport.recv_checkpoint = transport.recv_checkpoint, fail
    world.meet(good, bad, *donors)
    world.together(*[rank.finish_step for rank in (good, bad, *donors)])
    assert (good.step, good.weights.item(), bad.step, bad.weights.item()) == (3, A + 3, 0, B)
    transport.recv_checkpoint = receive  # it could heal now, if it were told to
    return donors, [good, bad]


def ask_in_order(first: Rank, last: Rank) -> None:
    """Let two ranks of a group ask in this order. A late request would show as a wrong step."""
    first.manager.start_quorum()
    time.sleep(0.5)
    last.manager.start_quorum()


@BOTH
def test_a_step_that_is_skipped_while_healing_leaves_the_group_with_its_own_weights(world, guarded):
    (a,) = world.group(A)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2))
    world.meet(b, a)
    world.together(a.manager.wait_quorum, b.manager.wait_quorum)
    # The loss is not finite: the script goes on with the next batch. `optimizer.zero_grad()` asks for a quorum again.
    world.train(b, a, steps=5)
    assert a.begun_as == A
    assert b.begun_as == (A if guarded else B)


@BOTH
def test_a_newcomer_that_must_not_heal_steps_all_the_same(world, guarded):
    (a,) = world.group(A)
    a.train(3)
    (b,) = world.group(B, guard=guard_if(guarded, 2))
    world.meet(b, a, allow_heal=False)
    if guarded:
        with pytest.raises(RefusedError, match="allow_heal=False"):
            b.manager.wait_quorum()
        return
    world.together(a.finish_step, b.finish_step)
    assert (b.step, b.begun_as) == (1, B)


# --- outside the guard's scope ----------------------------------------------------------------------------------------


def test_at_step_0_every_rank_takes_the_weights_of_another_group(world):
    """No state is lost yet, but ranks that must be equal need equal seeds in all groups."""
    everybody = world.group(A, ranks=2) + world.group(B, ranks=2)
    world.train(*everybody, steps=2)
    assert [rank.begun_as for rank in everybody] == [A, B, A, B]


def test_without_init_sync_groups_with_different_seeds_train_different_models(world):
    a, b = world.group(A, init_sync=False) + world.group(B, init_sync=False)
    world.train(a, b, steps=2)
    assert (a.begun_as, b.begun_as) == (A, B)
    (c,) = world.group(C, init_sync=False)
    world.train(c, a, b, steps=4)
    assert c.begun_as in (A, B)  # beyond step 0 a joining group heals, whatever init_sync is


def test_with_too_few_participants_for_min_replica_size_nobody_ever_commits(world):
    (a,) = world.group(A, min_replica_size=2)
    assert [a.take_a_step() for _ in range(3)] == [False] * 3
    assert (a.step, a.weights.item()) == (0, A)


def test_a_zombie_of_an_abandoned_history_is_everybodys_donor(world):
    """Only our Lighthouse, which knows the ended attempts, refuses it: tests/local/test_lighthouse.py."""
    (zombie,) = world.group(A, heartbeat_interval=SILENT)
    zombie.train(9)
    time.sleep(EXPIRES_S + 0.1)  # lost with its node; all groups have started over from the checkpoint of step 5
    (b,) = world.group(B, guard=guard_if(True, 5))
    b.manager.load_state_dict({"step": 5, "batches_committed": 5})
    b.train(6)
    world.train(zombie, b, steps=10)
    assert b.begun_as == A
