"""The wait for the members of a quorum, until all have joined or one is known to be gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.protocol import messages
from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage
from ftslurm.worker import quorum_abort
from ftslurm.worker.transfers import Transfers

LONG_S = 20.0


def quorums(*managers: Any) -> quorum_abort.BrokenQuorums:
    return quorum_abort.BrokenQuorums(managers, Position(), Transfers())


class Group:
    """A process group."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self.abort = abort


def manager(quorum: int, aborted: list[int], error: Exception | None = None) -> SimpleNamespace:
    transport = SimpleNamespace(busy=False)
    group = Group(lambda: aborted.append(quorum))
    return SimpleNamespace(_quorum_id=quorum, _errored=error, _pg=group, _checkpoint_transport=transport)


def watching(ours: quorum_abort.BrokenQuorums) -> threading.Thread:
    """Watch the broken quorum 3, as `tell` does."""
    watch = threading.Thread(target=ours._abort_when_stuck, args=(3,))
    watch.start()
    return watch


def test_what_was_made_is_returned_and_an_error_is_raised() -> None:
    assert quorums().unless_broken(3, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        quorums().unless_broken(3, lambda: 1 / 0)
    assert quorums().unless_broken(None, threading.current_thread) is threading.current_thread()


@pytest.mark.parametrize("told_before", [True, False])
def test_a_quorum_that_breaks_is_not_waited_for(told_before: bool) -> None:
    ours, never = quorums(), threading.Event()
    if told_before:
        ours.tell(3)
    else:
        threading.Timer(0.1, ours.tell, (3,)).start()
    start = time.monotonic()
    with pytest.raises(quorum_abort.Broken, match="quorum 3"):
        ours.unless_broken(3, lambda: never.wait(LONG_S))
    assert time.monotonic() - start < LONG_S / 2
    assert ours.connecting == 1  # it cannot be interrupted, and Python cannot end before it without harm
    never.set()
    while ours.connecting:
        time.sleep(0.01)


def test_one_that_breaks_says_nothing_of_later_ones() -> None:
    ours = quorums()
    ours.tell(3)
    assert ours.unless_broken(4, lambda: 7) == 7


def test_the_guards_words_are_read_when_there_is_something_to_wait_for() -> None:
    ours, (out, into), never = quorums(), os.pipe(), threading.Event()
    os.write(into, messages.encode(messages.Begin("n1", 1)) + messages.encode(messages.Broken(5)))
    ours.listen_to(out)
    time.sleep(0.1)
    assert ours.broken == -1
    with pytest.raises(quorum_abort.Broken):
        ours.unless_broken(5, lambda: never.wait(LONG_S))
    never.set()
    os.close(into)


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


@pytest.mark.parametrize(
    ("address", "quorum"),
    [
        ("n1:4711/torchft/12/0", 12),
        ("[::1]:4711/torchft/3/1", 3),
        ("n1:4711/0a1b/torchft/12", 12),  # the nightly's, in the group's store
        ("n1:4711/session/2f", None),
        ("n1:4711", None),
        ("n1:4711/torchft/x/0", None),
    ],
)
def test_the_quorum_of_a_store(address: str, quorum: int | None) -> None:
    assert quorum_abort.quorum_of(address) == quorum


def test_a_state_that_is_waited_for_in_the_process_group_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_abort, "COLLECTIVE_S", 0.05)
    aborted: list[int] = []
    ours = quorums(healing := manager(3, aborted), manager(3, aborted))
    ours.position.mark(7, Stage.SEEKING_QUORUM)
    ours.broken = 3
    watch = watching(ours)
    watch.join(0.2)
    assert watch.is_alive()
    assert aborted == []
    healing._checkpoint_transport.busy = True
    watch.join(LONG_S)
    assert aborted == [3]
