"""The wait for the members of a quorum, until all have joined or one is known to be gone."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from devices import Devices
from process_groups import set_up

from ftslurm.protocol import messages
from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage
from ftslurm.worker import group_end, quorum_abort, session

LONG_S = 20.0
process_group: Any = importlib.import_module("torchft.process_group")


def quorums(*managers: Any, joined: int = 3) -> quorum_abort.BrokenQuorums:
    ours = quorum_abort.BrokenQuorums(managers, Position())
    ours.joined.quorum = joined
    return ours


class Group(process_group.ProcessGroupWrapper):  # type: ignore[misc]
    """A process group of torchft whose abort is counted."""

    def __init__(self, aborted: Callable[[], None]) -> None:
        super().__init__()
        self.aborted = aborted

    def abort(self, **_: bool) -> None:
        self.aborted()


def manager(quorum: int, aborted: list[int], error: Exception | None = None) -> SimpleNamespace:
    group = Group(lambda: aborted.append(quorum))
    return SimpleNamespace(_quorum_id=quorum, _errored=error, _pg=group)


def watching(ours: quorum_abort.BrokenQuorums) -> threading.Thread:
    """Watch the broken quorum 3, as `tell` does."""
    watch = threading.Thread(target=ours._watch, args=(3,), daemon=True)
    watch.start()
    return watch


def test_what_was_made_is_returned_and_an_error_is_raised() -> None:
    assert quorums().unless_broken(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        quorums().unless_broken(lambda: 1 / 0)
    assert quorums(joined=0).unless_broken(threading.current_thread) is threading.current_thread()


@pytest.mark.parametrize("told_before", [True, False])
def test_a_quorum_that_breaks_is_not_waited_for(told_before: bool) -> None:
    ours, never = quorums(), threading.Event()
    if told_before:
        ours.tell(3)
    else:
        threading.Timer(0.1, ours.tell, (3,)).start()
    start = time.monotonic()
    with pytest.raises(quorum_abort.Broken, match="quorum 3"):
        ours.unless_broken(lambda: never.wait(LONG_S))
    assert time.monotonic() - start < LONG_S / 2
    assert group_end.hold_exit()  # it cannot be interrupted, and Python cannot end before it without harm
    never.set()
    while group_end.hold_exit():
        time.sleep(0.01)


class OnGpus(process_group.ProcessGroupWrapper):  # type: ignore[misc]
    """A process group of GPUs, whose collectives begin at once and end when all members are there."""

    _errored = None

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timedelta(seconds=timeout_s))
        self.there, self.aborted, self.stalled = threading.Event(), threading.Event(), False

    def _create_pg(self, *_: Any) -> Any:
        def wait() -> None:
            self.stalled |= not self.there.is_set()  # the stream of the script

        work = SimpleNamespace(is_completed=self.there.is_set, wait=wait)
        return SimpleNamespace(allreduce=lambda _: work, abort=self.aborted.set)


@pytest.mark.parametrize("gone", ["it is known", "nobody knows", None])
@pytest.mark.parametrize("joined", [3, 0])  # 0: the script has made the group, and no Manager
def test_a_member_that_dies_while_gpus_connect_stalls_no_stream_and_nothing_is_left_on_the_gpu(
    gone: str | None, joined: int
) -> None:
    ours = quorums(joined=joined)
    group = OnGpus(0.3 if gone == "nobody knows" or not joined else LONG_S)
    ours.cover(group)
    threading.Timer(0.1, (lambda: ours.tell(3)) if gone else group.there.set).start()
    if gone == "nobody knows":
        ours.tell = lambda _: None  # type: ignore[method-assign]
    began = time.monotonic()
    if gone:
        with pytest.raises(quorum_abort.Broken):
            group._create_pg()
    else:
        assert group._create_pg() is not None
    assert time.monotonic() - began < LONG_S / 2
    assert group.aborted.wait(LONG_S if gone else 0) is bool(gone)
    assert not group.stalled


def test_one_that_breaks_says_nothing_of_later_ones() -> None:
    ours = quorums(joined=4)
    ours.tell(3)
    assert ours.unless_broken(lambda: 7) == 7


@pytest.mark.parametrize("apart", [False, True])
def test_the_guards_words_are_read_when_there_is_something_to_wait_for(apart: bool) -> None:
    ours, (out, into), never = quorums(joined=5), os.pipe(), threading.Event()
    begin, broken = messages.encode(messages.Begin("n1", 1)), messages.encode(messages.Broken(5))
    half = len(broken) // 2 if apart else len(broken)
    os.write(into, begin + broken[:half])
    channel = session.Channel(0, out, into)
    assert channel.receive(messages.Begin).port == 1  # what has come with it is not lost
    ours.listen_to(channel.receive)
    time.sleep(0.1)
    assert ours.broken == -1
    os.write(into, broken[half:])
    with pytest.raises(quorum_abort.Broken):
        ours.unless_broken(lambda: never.wait(LONG_S))
    never.set()
    os.close(into)


def test_a_thread_of_ours_uses_the_gpu_of_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, (out, into) = Devices(monkeypatch), os.pipe()
    torch.accelerator.set_device_index(3)
    used: list[tuple[str, int]] = []

    def use(what: str) -> None:
        used.append((what, devices.current()))

    monkeypatch.setattr(quorum_abort, "COLLECTIVE_S", 0.05)
    on_gpus = Group(lambda: None)
    on_gpus._errored = None
    on_gpus._pg = SimpleNamespace(abort=lambda: use("abort NCCL"))
    both = [manager(3, []), manager(3, [])]
    both[0]._pg, both[1]._pg = on_gpus, Group(lambda: use("abort"))
    ours = quorums(*both)
    ours.listen_to(session.Channel(0, out, into).receive)
    ours.position.mark(12, Stage.COLLECTIVE)
    ours.unless_broken(lambda: use("connect"))
    os.write(into, messages.encode(messages.Broken(3)))
    deadline = time.monotonic() + LONG_S
    while len(used) < 3:
        assert time.monotonic() < deadline, used
        time.sleep(0.01)
    assert sorted(used) == [("abort", 3), ("abort NCCL", 3), ("connect", 3)]
    os.close(into)


def test_the_group_of_the_next_quorum_is_left_alone_however_slow_the_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[int] = []
    one = manager(3, aborted)

    def slow(_: str) -> None:
        one._quorum_id, one._pg = 4, Group(lambda: aborted.append(4))

    monkeypatch.setattr(quorum_abort, "complain", slow)
    quorums(one)._abort(one)
    assert aborted == [3]


def test_a_process_group_in_a_child_process_gets_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchft's own set-up, until the child starts."""
    Devices(monkeypatch)
    given: list[Any] = []

    class Context:
        Pipe = staticmethod(lambda: (None, None))

        def Process(self, args: tuple[Any, ...], **_: Any) -> Any:  # noqa: N802 - multiprocessing's name
            given.extend(args)
            raise InterruptedError

    monkeypatch.setattr(process_group.mp, "get_context", lambda _: Context())
    monkeypatch.setattr(process_group, "_MonitoredPipe", lambda _: SimpleNamespace(close=lambda: None))
    group = process_group.ProcessGroupBabyGloo()
    quorums().cover(group)
    torch.accelerator.set_device_index(2)
    with pytest.raises(InterruptedError):
        set_up(group, 1, 3, 0, 2)
    assert given[-1] == 2


@pytest.mark.parametrize(
    ("stage", "quorum", "error", "aborts"),
    [
        (Stage.COLLECTIVE, 3, None, True),
        (Stage.VOTING, 3, None, True),  # on GPUs the collective is waited for there
        (Stage.COMPUTING, 3, None, False),
        (Stage.SEEKING_QUORUM, 3, None, False),
        (Stage.COLLECTIVE, 4, None, False),  # it has a later one
        (Stage.COLLECTIVE, 2, None, True),  # whoever has left an earlier quorum for a broken one is not waited for
        (Stage.COLLECTIVE, 3, RuntimeError(), False),  # it has found out by itself
    ],
)
def test_a_collective_that_hangs_is_aborted(
    monkeypatch: pytest.MonkeyPatch, stage: Stage, quorum: int, error: Exception | None, aborts: bool
) -> None:
    monkeypatch.setattr(quorum_abort, "COLLECTIVE_S", 0.05)
    aborted: list[int] = []
    ours = quorums(manager(quorum, aborted, error))
    ours.position.mark(12, stage)
    ours.tell(3)
    deadline = time.monotonic() + (LONG_S if aborts else 0.2)
    while not aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert aborted == ([quorum] if aborts else [])


def test_one_that_is_entered_later_is_aborted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_abort, "COLLECTIVE_S", 0.05)
    aborted: list[int] = []
    ours = quorums(manager(3, aborted))
    ours.position.mark(12, Stage.COMPUTING)
    ours.tell(3)
    time.sleep(0.2)
    assert not aborted
    ours.position.mark(12, Stage.COLLECTIVE)
    deadline = time.monotonic() + LONG_S
    while not aborted:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_watch_ends_with_the_next_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_abort, "COLLECTIVE_S", 0.05)
    aborted: list[int] = []
    one = manager(3, aborted)
    ours = quorums(one)
    ours.position.mark(12, Stage.COMPUTING)
    watch = watching(ours)
    one._quorum_id = 4
    watch.join(LONG_S)
    assert not watch.is_alive()
    assert not aborted


def test_one_that_ends_by_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_abort, "COLLECTIVE_S", 1.0)
    aborted: list[int] = []
    one = manager(3, aborted)
    ours = quorums(one)
    ours.position.mark(12, Stage.COLLECTIVE)
    watch = watching(ours)
    ours.position.mark(13, Stage.COMPUTING)
    one._quorum_id = 4
    watch.join(LONG_S)
    assert not aborted
