"""The Lighthouse's state after messages of managers and of the controller, as histories."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from full_disk import fill, full_disk, make_room

from ftslurm.guard.stacks import PATIENCE_S
from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.last_quorum import LastQuorum
from ftslurm.lighthouse.quorum import Ask, Member, Quorum, Rules
from ftslurm.lighthouse.registry import BACK_WITHIN_S, MOST_STEPS, QUORUMS, Book, Refused
from ftslurm.lighthouse.server import Server
from ftslurm.protocol import messages

RULES = Rules(min_replicas=1, join_timeout_s=10.0, heartbeat_timeout_s=5.0)


def book() -> Book:
    return Book(RULES, 0.0)


def m(name: str, step: int = 0, failures: int = 0) -> Member:
    """Return a member whose store is named after it: a1 and a2 are two attempts of a group."""
    return Member(name, store_address=f"host:{name}", step=step, commit_failures=failures)


def step(it: Book, now: float, *members: Member) -> Quorum:
    """Let all members ask; return their quorum."""
    for one in members:
        assert isinstance(it.ask(one, now), Ask)
    quorum = it.form(now)
    assert quorum is not None, it.why
    return quorum


def running(groups: str = "ab", at: int = 10) -> Book:
    """Return a registry with announced groups that have taken some steps: a1 of group 0, b1 of group 1 ..."""
    it = book()
    for number, group in enumerate(groups):
        it.announce(number, 0, f"host:{group}1")
    step(it, 0.0, *(m(f"{g}1", at - 1) for g in groups))
    step(it, 1.0, *(m(f"{g}1", at) for g in groups))
    return it


def refused(answer: object) -> Refused:
    assert isinstance(answer, Refused)
    return answer


def unknown(answer: object) -> bool:
    """Return whether a manager is refused because the controller has not announced its store."""
    if not isinstance(answer, Refused):
        return False
    both = "in a child process (mp.spawn)" in answer.reason and "(store_addr)" in answer.reason
    return answer.for_now and "no attempt of this run" in answer.reason and both


def taken(answer: object, holder: str) -> bool:
    """Return whether a manager is refused because another one has its store."""
    return isinstance(answer, Refused) and answer.for_now and f"({holder!r}) lives" in answer.reason


def test_whoever_is_forgotten_was_set_aside_before_although_time_goes_on_within_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, told = running(), list[messages.Report]()
    it.beat("a1", 5.0)
    clock = itertools.count(1.0 + RULES.heartbeat_timeout_s - 0.0005, 0.001)
    monkeypatch.setattr("ftslurm.lighthouse.server.now", lambda: next(clock))

    async def some_ticks() -> None:
        server = Server(it, LastQuorum(str(tmp_path)), 0.001, told.append)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.tick(), 0.2)

    asyncio.run(some_ticks())
    assert [(one.group, one.aside) for one in told if isinstance(one, messages.GroupAside)] == [(1, True)]


def test_an_evicted_group_is_waited_for_no_longer() -> None:
    it = running("abc")
    it.ask(m("a1", 11), 2.0)
    it.ask(m("b1", 11), 2.0)
    assert it.form(2.0) is None
    it.evict(2, 0)
    quorum = it.form(2.0)
    assert quorum is not None
    assert quorum.ids == ("a1", "b1")


def test_the_last_groups_may_be_fewer_than_the_least_once_others_have_finished() -> None:
    it = running("abc")
    it.rules = replace(RULES, min_replicas=3)
    it.evict(2, 0)
    it.ask(m("a1", 11), 2.0)
    it.ask(m("b1", 11), 2.0)
    assert it.form(2.0) is None
    assert it.why is not None
    assert it.why.reason == "2 groups ask, 3 are needed (groups.min)"
    it.evict(2, 0, finished=True)
    quorum = it.form(2.0)
    assert quorum is not None
    assert quorum.ids == ("a1", "b1")
    it.announce(2, 1, "host:c2")  # it trains again, after a full restart
    it.ask(m("a1", 12), 3.0)
    assert it.form(3.0) is None
    assert it.why.reason == "1 groups ask, 3 are needed (groups.min)"


def test_a_late_word_of_an_evicted_attempt_does_not_revive_it() -> None:
    it = running("abc")
    it.evict(2, 0)
    it.beat("c1", 2.0)
    assert isinstance(it.ask(m("c1", 11), 2.0), Refused)
    assert isinstance(it.ask(Member("c1-other-id", store_address="host:c1"), 2.0), Refused)
    assert step(it, 2.0, m("a1", 11), m("b1", 11)).ids == ("a1", "b1")


def test_the_request_of_an_evicted_attempt_is_forgotten() -> None:
    it = running("ab")
    it.ask(m("b1", 11), 2.0)
    it.evict(1, 0, "host:b1")
    assert step(it, 2.0, m("a1", 11)).ids == ("a1",)


def test_a_new_attempt_ends_the_ones_before() -> None:
    it = running("ab")
    it.announce(1, 1, "host:b2")
    assert isinstance(it.ask(m("b1", 11), 2.0), Refused)
    assert step(it, 2.0, m("a1", 11), m("b2")).ids == ("a1", "b2")
    it.announce(1, 0, "host:b1")  # a late message
    assert isinstance(it.ask(m("b1", 11), 2.0), Refused)


def test_an_eviction_that_comes_late_spares_the_new_attempt() -> None:
    it = running("ab")
    it.announce(1, 1, "host:b2")
    it.evict(1, 0, "host:b1")
    assert step(it, 2.0, m("a1", 11), m("b2")).ids == ("a1", "b2")


def test_a_port_that_is_used_again_is_the_new_attempts() -> None:
    it = running("ab")
    it.evict(1, 0, "host:b1")
    it.announce(1, 1, "host:b1")
    quorum = step(it, 2.0, m("a1", 11), Member("b2", store_address="host:b1"))
    assert quorum.ids == ("a1", "b2")
    it.evict(1, 0, "host:b1")  # repeated
    assert step(it, 3.0, m("a1", 12), Member("b2", store_address="host:b1", step=12)).id == quorum.id


def test_once_the_controller_has_told_of_any_attempt_there_are_no_others() -> None:
    it = book()
    assert isinstance(it.ask(m("x1"), 0.0), Ask)  # nothing is announced yet: every member is accepted
    it = running("a")
    assert unknown(it.ask(m("x1", 99), 2.0))
    assert it.highest == 10
    it.evict(0, 0)
    assert unknown(it.ask(m("x1", 99), 2.0))  # also when no member is left
    assert unknown(it.ask(Member("y", step=99), 2.0))


def test_a_fresh_group_alone_waits_for_somebody_to_heal_from() -> None:
    it = running("ab")
    it.announce(1, 1, "host:b2")
    it.ask(m("b2"), 10.0)  # a is silent
    assert it.form(10.0) is None
    assert it.why is not None
    assert it.why.poisoned
    assert step(it, 11.0, m("a1", 11)).ids == ("a1", "b2")


def test_the_controller_may_allow_a_new_history() -> None:
    it = running("ab")
    it.evict(0, 0)
    it.evict(1, 0)
    it.announce(0, 1, "host:a2")
    it.ask(m("a2", 8), 20.0)
    assert it.form(20.0) is None
    it.new_history(0)
    assert it.form(20.0) is not None
    assert it.highest == 8
    assert it.last is not None
    assert it.last.id == 2


def test_ids_only_rise() -> None:
    it = running("ab")
    ids = [step(it, 2.0, m("a1", 11), m("b1", 11)).id]
    ids.append(step(it, 3.0, m("a1", 12), m("b1", 12)).id)
    ids.append(step(it, 4.0, m("a1", 12, failures=1), m("b1", 12)).id)
    it.evict(1, 0)
    ids.append(step(it, 5.0, m("a1", 13)).id)
    assert ids == [1, 1, 2, 3]


def test_a_request_that_was_given_up_is_void_but_not_the_one_that_took_its_place() -> None:
    it = running("ab")
    first = it.ask(m("b1", 11), 2.0)
    second = it.ask(m("b1", 11), 3.0)
    assert isinstance(first, Ask)
    assert isinstance(second, Ask)
    it.withdraw(first)
    assert "b1" in it.asking
    it.withdraw(second)
    assert "b1" not in it.asking


def test_what_is_silent_is_forgotten_and_may_come_back() -> None:
    it = running("ab")
    it.beat("x", 1.0)
    it.prune(100.0)
    assert not it.beats
    assert not it.known
    assert step(it, 101.0, m("a1", 11), m("b1", 11)).id == 1


def test_who_has_not_asked_is_not_waited_for_whatever_beats() -> None:
    it = running("abc")
    it.evict(2, 0)
    for number in range(10):
        it.beat(f"x{number}", 2.0)
    assert it.beats.keys() == {"a1", "b1"}
    assert step(it, 2.0, m("a1", 11), m("b1", 11)).ids == ("a1", "b1")


# --- impossible steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absurd", [12, 10**6, MOST_STEPS - 1, MOST_STEPS, 2**62])
def test_a_step_that_nobody_can_have_reached_is_refused_and_not_remembered(absurd: int) -> None:
    it = running("ab")
    it.announce(1, 1, "host:b2")
    refused = it.ask(m("b2", absurd), 2.0)
    assert isinstance(refused, Refused)
    assert refused.tell
    assert f"step {absurd}" in refused.reason
    assert step(it, 2.1, m("a1", 11)).ids == ("a1",)
    assert it.highest == 11


def test_a_manager_that_committed_asks_with_one_more_and_others_with_fewer() -> None:
    it = running("abc")
    it.evict(2, 0)
    it.announce(2, 1, "host:c2")
    assert step(it, 2.0, m("a1", 11), m("b1", 10), m("c2", 0)).ids == ("a1", "b1", "c2")


@pytest.mark.parametrize("first", [0, 7, 10**9])
def test_the_first_quorum_may_be_at_the_step_of_any_checkpoint(first: int) -> None:
    it = book()
    it.announce(0, 0, "host:a1")
    assert isinstance(it.ask(m("a1", MOST_STEPS), 0.0), Refused)
    assert step(it, 0.0, m("a1", first)).id == 1
    assert it.highest == first


def test_a_new_history_may_begin_beyond_the_checkpoint_that_the_controller_knows() -> None:
    it = running("a")
    it.announce(0, 1, "host:a2")
    it.new_history(5)
    assert step(it, 2.0, m("a2", 500)).ids == ("a2",)


def test_a_step_beyond_the_run_is_refused_where_nobody_checks_stores_as_well() -> None:
    it = book()
    step(it, 0.0, m("a", 7))
    assert isinstance(it.ask(m("b", 2**62), 1.0), Refused)


# --- one manager for a store -----------------------------------------------------------------------------------------


def test_a_second_manager_with_the_same_store_waits_until_the_first_is_silent() -> None:
    it = running("ab")  # last heard at 1.0
    second = Member("a1-second", store_address="host:a1", step=11)
    assert taken(it.ask(second, 2.0), "a1")
    it.beat("a1", 3.0)
    assert taken(it.ask(second, 6.0), "a1")
    assert step(it, 6.1, m("a1", 11), m("b1", 11)).ids == ("a1", "b1")  # it is not disturbed
    it.beat("b1", 10.0)
    assert step(it, 11.0, second, m("b1", 12)).ids == ("a1-second", "b1")
    assert taken(it.ask(m("a1", 12), 11.3), "a1-second")  # the first is not accepted beside it


def test_a_manager_whose_request_waits_lives_however_long_it_is_silent() -> None:
    it = running("ab")
    waits = it.ask(m("a1", 11), 2.0)
    second = Member("a1-second", store_address="host:a1", step=11)
    assert taken(it.ask(second, 50.0), "a1")
    assert isinstance(waits, Ask)
    it.withdraw(waits)
    assert isinstance(it.ask(second, 50.0), Ask)


def test_the_store_of_an_attempt_that_is_over_is_free_at_once() -> None:
    it = running("a")
    it.announce(0, 1, "host:a1")
    assert isinstance(it.ask(Member("a2", store_address="host:a1"), 1.1), Ask)


def test_where_no_controller_tells_of_stores_they_may_be_the_same() -> None:
    it = book()
    assert step(it, 0.0, Member("a"), Member("b")).ids == ("a", "b")


# --- reports ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_reported_once_for_a_store(tmp_path: Path) -> None:
    it, told = running("ab"), list[Any]()
    it.announce(1, 1, "host:b2")
    server = Server(it, LastQuorum(str(tmp_path)), 1.0, told.append)
    for _ in range(10):
        server._tell(refused(it.ask(Member("x", store_address="host:x"), 2.0)), "host:x")
    assert len(told) == 1
    assert "lighthouse=torchft" in told[0].reason
    for number in range(10):
        server._tell(Refused(f"step {20 + number}"), "host:b2")
    assert told[1:] == [messages.QuorumRefused("step 20")]
    server._tell(refused(it.ask(Member("a1-second", store_address="host:a1", step=11), 2.0)), "host:a1")
    assert "'a1'" in told[-1].reason
    server._tell(Refused("this attempt is over", tell=False), "host:a0")
    assert len(told) == 3


# --- a successor -----------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> LastQuorum:
    return LastQuorum(str(tmp_path))


def killed_and_back(it: Book, file: LastQuorum, now: float, *, quorum_kept: bool = True) -> Book:
    """Return the successor of a Lighthouse, which knows what is on disk, and what the controller tells it."""
    if quorum_kept and it.last is not None:
        file.write(protobuf.write_quorum(it.last, 1.5))
    successor = Book(RULES, now, 1, 9, file.load())
    for store, (group, attempt) in it.stores.items():
        successor.announce(group, attempt, store)
    successor.told_all = True
    return successor


def test_the_successor_goes_on_with_the_same_id(file: LastQuorum) -> None:
    it = killed_and_back(running("ab"), file, 2.0)
    assert step(it, 2.1, m("a1", 11), m("b1", 11)).id == 1
    assert step(it, 2.2, m("a1", 12, failures=1), m("b1", 12)).id == QUORUMS + 1


def test_the_first_to_come_back_waits_for_the_others(file: LastQuorum) -> None:
    it = killed_and_back(running("abc"), file, 2.0)
    it.ask(m("a1", 11), 2.1)
    it.ask(m("b1", 11), 2.1)
    assert it.form(2.0 + BACK_WITHIN_S - 0.1) is None
    it.evict(2, 0)
    assert it.form(2.2) is not None


def test_who_has_not_dialled_a_successor_in_time_counts_no_longer(file: LastQuorum) -> None:
    """Of four dead and two new members, the two are then the majority; before, they waited five seconds more."""
    it = killed_and_back(running("abcd"), file, 2.0)
    now = 2.0 + BACK_WITHIN_S + 0.1
    it.beat("a1", now)
    assert step(it, now, m("a1", 11)).ids == ("a1",)


def test_who_missed_the_last_answer_gets_it_again(file: LastQuorum) -> None:
    it = killed_and_back(running("ab"), file, 2.0)
    before = it.last
    assert it.ask(m("b1", 10), 2.1) == before  # a1 has its answer and is in the step, without b1
    assert isinstance(it.ask(m("b1", 10), 2.2), Ask)  # once


@pytest.mark.parametrize("again", [m("b1", 11), m("b1", 10, failures=1)])
def test_who_has_taken_the_step_gets_no_old_answer(file: LastQuorum, again: Member) -> None:
    assert isinstance(killed_and_back(running("ab"), file, 2.0).ask(again, 2.1), Ask)


def test_an_answer_with_a_dead_member_is_not_given_again(file: LastQuorum) -> None:
    it = killed_and_back(running("ab"), file, 2.0)
    it.evict(0, 0)
    assert isinstance(it.ask(m("b1", 10), 2.1), Ask)


def test_a_member_that_the_controller_does_not_announce_any_more_has_broken_the_last_quorum(file: LastQuorum) -> None:
    first = running("abc")
    del first.stores["host:c1"]  # it died with the first Lighthouse
    it = killed_and_back(first, file, 2.0)
    it.evict(2, 0)
    assert it.broken() == 1
    assert isinstance(it.ask(m("a1", 10), 2.1), Ask)
    assert unknown(it.ask(m("c1", 10), 2.1))


@pytest.mark.parametrize("back", [False, True])
def test_the_survivors_do_not_wait_for_a_member_that_died_with_the_first_lighthouse(
    file: LastQuorum, back: bool
) -> None:
    first = running("ab")
    del first.stores["host:b1"]
    it = killed_and_back(first, file, 2.0)
    if back:  # its next attempt has a store already
        it.announce(1, 1, "host:b2")
    else:
        it.evict(1, 0)
    quorum = step(it, 2.1, m("a1", 11))
    assert (quorum.id, quorum.ids) == (QUORUMS + 1, ("a1",))


def test_a_member_counts_as_alive_until_the_controller_has_told_of_all_that_live(file: LastQuorum) -> None:
    it = killed_and_back(running("ab"), file, 2.0)
    del it.stores["host:b1"]
    it.told_all = False
    assert isinstance(it.ask(m("a1", 11), 2.1), Ask)
    assert it.form(2.2) is None
    it.announce(1, 0, "host:b1")
    it.told_all = True
    assert step(it, 2.3, m("a1", 11), m("b1", 11)).ids == ("a1", "b1")


def test_nobody_is_let_in_before_the_controller_has_announced_it(file: LastQuorum) -> None:
    it = Book(RULES, 2.0, 1, 9, file.load())
    assert unknown(it.ask(m("a1", 11), 2.1))
    it.announce(0, 0, "host:a1")
    assert isinstance(it.ask(m("a1", 11), 2.1), Ask)


def test_the_successor_knows_who_is_over_and_how_far_the_run_is(file: LastQuorum) -> None:
    it = killed_and_back(running("ab"), file, 2.0)
    assert unknown(it.ask(m("x"), 2.1))
    assert it.highest == 10
    it = killed_and_back(running("ab"), file, 2.0, quorum_kept=False)
    it.evict(1, 0)
    it.announce(1, 1, "host:b2")
    it.ask(m("b2"), 2.1)
    assert it.form(60.0) is None
    assert it.highest == 10


def test_without_a_trusted_quorum_the_ids_are_new_and_all_live_attempts_are_waited_for(file: LastQuorum) -> None:
    it = killed_and_back(running("ab"), file, 2.0, quorum_kept=False)
    it.ask(m("a1", 300), 2.1)  # what the controller knew may be seconds old
    assert it.form(2.1) is None
    quorum = step(it, 2.2, m("b1", 300))
    assert (quorum.id, quorum.ids) == (QUORUMS + 1, ("a1", "b1"))


@pytest.mark.parametrize("damage", [b"", b"\0" * 24, b"x" * 300])
def test_a_damaged_quorum_file_is_no_quorum(file: LastQuorum, damage: bytes, tmp_path: Path) -> None:
    killed_and_back(running("ab"), file, 2.0)
    (tmp_path / "lighthouse.quorum").write_bytes(damage)
    assert LastQuorum(str(tmp_path)).load() is None


def test_every_cut_and_every_flipped_bit_of_the_quorum_file_is_seen(file: LastQuorum, tmp_path: Path) -> None:
    killed_and_back(running("ab"), file, 2.0)
    path = tmp_path / "lighthouse.quorum"
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for data in damaged:
        path.write_bytes(data)
        assert file.load() is None


def test_a_quorum_of_before_a_reboot_is_not_trusted(file: LastQuorum, tmp_path: Path) -> None:
    killed_and_back(running("ab"), file, 2.0)
    other = LastQuorum(str(tmp_path))
    other._boot = b"0123456789abcdef"
    assert other.load() is None


def test_a_poisoned_quorum_file_is_no_quorum(file: LastQuorum) -> None:
    file.write(protobuf.write_quorum(Quorum(1, (m("a1", 2**62),)), 1.5))
    assert file.load() is None


def test_a_quorum_that_did_not_fit_leaves_none_and_not_the_one_before(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        make_room(disk)
        file = LastQuorum(str(disk))
        file.write(protobuf.write_quorum(Quorum(5, (m("a1", 7),)), 0.0))
        fill(disk)
        last = LastQuorum(str(disk)).load()  # what is there can be read
        assert last is not None
        assert last.id == 5
        file.write(protobuf.write_quorum(Quorum(6, tuple(m(f"a{n}", 7) for n in range(1000))), 0.0))
        assert LastQuorum(str(disk)).load() is None


def test_a_lighthouse_without_room_for_the_file_goes_on_without(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", inodes=2) as disk:  # the folder itself, and the filler
        file = LastQuorum(str(disk))
        file.write(protobuf.write_quorum(Quorum(5, (m("a1", 7),)), 0.0))
        file.forget()
        assert file.load() is None


TIMEOUT = RULES.heartbeat_timeout_s
SILENT_AT = 1.0 + TIMEOUT  # from then on who was last heard at 1.0, when `running` has its quorum, is silent


def heard(it: Book, now: float, *names: str) -> list[messages.GroupAside]:
    """Let only these managers be heard; return what the Lighthouse finds out."""
    for name in names:
        it.beat(name, now)
    return it.set_aside(now)


def test_a_silent_member_of_the_last_quorum_is_set_aside_and_the_quorum_is_broken() -> None:
    it = running("abc")
    assert heard(it, SILENT_AT - 0.1, "a1", "b1") == []
    assert it.broken() is None
    assert heard(it, SILENT_AT, "a1", "b1") == [messages.GroupAside(2, 0, True, TIMEOUT)]
    assert it.broken() == 1
    assert heard(it, SILENT_AT + 1, "a1", "b1") == []  # said once
    assert step(it, SILENT_AT + 1.1, m("a1", 11), m("b1", 11)).ids == ("a1", "b1")
    assert it.broken() is None


def test_a_group_that_was_set_aside_takes_part_again_once_its_manager_is_heard_for_a_second() -> None:
    it = running("abc")
    heard(it, SILENT_AT, "a1", "b1")
    before = step(it, SILENT_AT, m("a1", 11), m("b1", 11))
    assert heard(it, SILENT_AT + 0.5, "a1", "b1", "c1") == []
    it.ask(m("c1", 11), SILENT_AT + 0.5)
    assert step(it, SILENT_AT + 0.5, m("a1", 12), m("b1", 12)).ids == ("a1", "b1")
    now = SILENT_AT + 1
    assert heard(it, now, "a1", "b1", "c1") == [messages.GroupAside(2, 0, False, TIMEOUT + 1)]
    quorum = step(it, now, m("a1", 13), m("b1", 13))
    assert quorum.ids == ("a1", "b1", "c1")
    assert quorum.id > before.id


def test_a_stopped_group_that_is_woken_for_its_stacks_does_not_take_part() -> None:
    it = running("abc")
    heard(it, SILENT_AT, "a1", "b1")
    for woken in (SILENT_AT, SILENT_AT + 9):
        for moment in (woken, woken + PATIENCE_S):
            assert heard(it, moment, "a1", "b1", "c1") == []
            it.prune(moment)
        for moment in (woken + 2, woken + 2 + TIMEOUT, woken + 9):
            assert heard(it, moment, "a1", "b1") == []
            it.prune(moment)


def test_a_request_that_waits_is_kept_while_its_group_is_set_aside() -> None:
    it = running("abc")
    assert isinstance(it.ask(m("c1", 11), 1.0), Ask)
    heard(it, SILENT_AT, "a1", "b1")
    step(it, SILENT_AT, m("a1", 11), m("b1", 11))
    heard(it, SILENT_AT + 1, "a1", "b1", "c1")
    assert step(it, SILENT_AT + 1, m("a1", 12), m("b1", 12)).ids == ("a1", "b1", "c1")


def test_a_quorum_that_was_broken_is_never_issued_again_even_with_the_same_members() -> None:
    it = running("abc")
    heard(it, SILENT_AT, "a1", "b1")
    heard(it, SILENT_AT + 1.1, "a1", "b1", "c1")
    assert step(it, SILENT_AT + 1.2, m("a1", 10), m("b1", 10), m("c1", 10)).id == 2


def test_when_more_than_half_are_silent_it_is_the_lighthouse_that_did_not_hear() -> None:
    it = running("abc")
    assert heard(it, SILENT_AT, "a1") == []
    assert heard(it, SILENT_AT + 9) == []
    assert it.broken() is None
    two = running("ab")
    assert heard(two, SILENT_AT, "a1") == [messages.GroupAside(1, 0, True, TIMEOUT)]


def test_an_attempt_that_is_over_is_not_heard_again_and_no_stranger_is_set_aside() -> None:
    it = running("abc")
    it.beat("x9", 0.5)  # no member
    assert heard(it, SILENT_AT, "a1", "b1") == [messages.GroupAside(2, 0, True, TIMEOUT)]
    it.evict(2, 0)
    assert heard(it, SILENT_AT + 1, "a1", "b1", "c1") == []
