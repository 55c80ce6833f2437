"""The Lighthouse's state after messages of managers and of the controller, as histories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.persistence import BLOCK, Keep
from ftslurm.lighthouse.quorum import Ask, Member, Quorum, Rules
from ftslurm.lighthouse.registry import BACK_WITHIN_S, MOST_IDS, MOST_STEPS, Book, Memory, Refused, Taken, Unknown
from ftslurm.lighthouse.server import STRANGERS_TOLD, Server
from ftslurm.protocol import messages

RULES = Rules(min_replicas=1, join_timeout_s=10.0, heartbeat_timeout_s=5.0)


def book(memory: Memory | None = None, now: float = 0.0) -> Book:
    return Book(RULES, memory or Memory(), now)


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
    assert it.ask(m("x1", 99), 2.0) == Unknown("host:x1")
    assert it.memory.highest == 10
    it.evict(0, 0)
    assert it.ask(m("x1", 99), 2.0) == Unknown("host:x1")  # also when no member is left
    assert it.ask(Member("y", step=99), 2.0) == Unknown("")


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
    assert it.memory.highest == 8
    ids = it.memory.last.id if it.memory.last else 0
    assert ids == 2


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


def test_memory_is_bounded_whatever_beats() -> None:
    it = running("ab")
    for number in range(MOST_IDS + 200):
        it.beat(f"x{number}", 1.0 + number / 1e6)
    assert len(it.beats) == MOST_IDS
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
    assert it.memory.highest == 11


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
    assert it.memory.highest == first


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
    assert it.ask(second, 2.0) == Taken("host:a1", "a1")
    it.beat("a1", 3.0)
    assert it.ask(second, 6.0) == Taken("host:a1", "a1")
    assert step(it, 6.1, m("a1", 11), m("b1", 11)).ids == ("a1", "b1")  # it is not disturbed
    it.beat("b1", 10.0)
    assert step(it, 11.0, second, m("b1", 12)).ids == ("a1-second", "b1")
    assert it.ask(m("a1", 12), 11.3) == Taken("host:a1", "a1-second")  # the first is not accepted beside it


def test_a_manager_whose_request_waits_lives_however_long_it_is_silent() -> None:
    it = running("ab")
    waits = it.ask(m("a1", 11), 2.0)
    second = Member("a1-second", store_address="host:a1", step=11)
    assert isinstance(it.ask(second, 50.0), Taken)
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


def test_a_refusal_is_reported_once_for_a_store_and_few_strangers_are(tmp_path: Path) -> None:
    it, told = running("ab"), []
    it.announce(1, 1, "host:b2")
    server = Server(it, Keep(str(tmp_path)), 1.0, told.append)
    for number in range(10):
        name = f"x{number}"
        assert "lighthouse=torchft" in server._refusal(Unknown(f"host:{name}"), f"host:{name}").reason
    assert len(told) == STRANGERS_TOLD
    for number in range(10):  # also after many strangers
        assert str(20 + number) in server._refusal(Refused(f"step {20 + number}", tell=True), "host:b2").reason
    assert told[STRANGERS_TOLD:] == [messages.QuorumRefused("step 20")]
    assert "'a1'" in server._refusal(Taken("host:a1", "a1"), "host:a1").reason
    assert server._refusal(Refused("this attempt is over"), "host:a0").reason == "this attempt is over"
    assert len(told) == STRANGERS_TOLD + 2


# --- a successor -----------------------------------------------------------------------------------------------------


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    return Keep(str(tmp_path))


def killed_and_back(it: Book, keep: Keep, now: float, *, quorum_kept: bool = True) -> Book:
    """Save the registry; return a successor, which knows only what is on disk."""
    keep.write_state(keep.snapshot(it.memory))
    if quorum_kept and it.memory.last is not None:
        keep.write_quorum(protobuf.write_quorum(it.memory.last, 1.5))
    return Book(RULES, Keep(str(Path(keep._state).parent)).load(), now)


def test_the_successor_goes_on_with_the_same_id(keep: Keep) -> None:
    it = killed_and_back(running("ab"), keep, 2.0)
    assert step(it, 2.1, m("a1", 11), m("b1", 11)).id == 1
    assert step(it, 2.2, m("a1", 12, failures=1), m("b1", 12)).id == 2


def test_the_first_to_come_back_waits_for_the_others(keep: Keep) -> None:
    it = killed_and_back(running("abc"), keep, 2.0)
    it.ask(m("a1", 11), 2.1)
    it.ask(m("b1", 11), 2.1)
    assert it.form(2.0 + BACK_WITHIN_S - 0.1) is None
    it.evict(2, 0)
    assert it.form(2.2) is not None


def test_who_has_not_dialled_a_successor_in_time_counts_no_longer(keep: Keep) -> None:
    """Of four dead and two new members, the two are then the majority; before, they waited five seconds more."""
    it = killed_and_back(running("abcd"), keep, 2.0)
    now = 2.0 + BACK_WITHIN_S + 0.1
    it.beat("a1", now)
    assert step(it, now, m("a1", 11)).ids == ("a1",)


def test_who_missed_the_last_answer_gets_it_again(keep: Keep) -> None:
    it = killed_and_back(running("ab"), keep, 2.0)
    before = it.memory.last
    assert it.ask(m("b1", 10), 2.1) == before  # a1 has its answer and is in the step, without b1
    assert isinstance(it.ask(m("b1", 10), 2.2), Ask)  # once


@pytest.mark.parametrize("again", [m("b1", 11), m("b1", 10, failures=1)])
def test_who_has_taken_the_step_gets_no_old_answer(keep: Keep, again: Member) -> None:
    assert isinstance(killed_and_back(running("ab"), keep, 2.0).ask(again, 2.1), Ask)


def test_an_answer_with_a_dead_member_is_not_given_again(keep: Keep) -> None:
    it = killed_and_back(running("ab"), keep, 2.0)
    it.evict(0, 0)
    assert isinstance(it.ask(m("b1", 10), 2.1), Ask)


def test_the_successor_knows_who_is_over_and_how_far_the_run_is(keep: Keep) -> None:
    first = running("abc")
    first.evict(2, 0)
    it = killed_and_back(first, keep, 2.0)
    assert isinstance(it.ask(m("c1", 11), 2.1), Refused)
    assert isinstance(it.ask(m("x"), 2.1), Unknown)
    assert it.memory.highest == 10
    it.announce(2, 0, "host:c1")
    assert isinstance(it.ask(m("c1", 11), 2.2), Refused)


def test_without_a_trusted_quorum_ids_go_on_after_their_block(keep: Keep) -> None:
    it = killed_and_back(running("ab"), keep, 2.0, quorum_kept=False)
    assert step(it, 2.1, m("a1", 11), m("b1", 11)).id > BLOCK


@pytest.mark.parametrize("damage", [b"", b"\0" * 24, b"x" * 300])
def test_a_damaged_quorum_file_is_no_quorum(keep: Keep, damage: bytes, tmp_path: Path) -> None:
    killed_and_back(running("ab"), keep, 2.0)
    (tmp_path / "lighthouse.quorum").write_bytes(damage)
    memory = Keep(str(tmp_path)).load()
    assert memory.last is None
    assert memory.next_id > BLOCK


def test_every_cut_and_every_flipped_bit_of_the_quorum_file_is_seen(keep: Keep, tmp_path: Path) -> None:
    killed_and_back(running("ab"), keep, 2.0)
    file = tmp_path / "lighthouse.quorum"
    whole = file.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for data in damaged:
        file.write_bytes(data)
        assert keep.load().last is None


def test_a_quorum_of_before_a_reboot_is_not_trusted(keep: Keep, tmp_path: Path) -> None:
    killed_and_back(running("ab"), keep, 2.0)
    other = Keep(str(tmp_path))
    other._boot = b"0123456789abcdef"
    assert other.load().last is None


def test_a_quorum_file_that_a_later_life_knows_nothing_of_is_not_trusted(keep: Keep, tmp_path: Path) -> None:
    it = running("ab")
    killed_and_back(it, keep, 2.0)
    elsewhere = Book(RULES, it.memory, 2.0)  # on another machine, whose quorums did not reach this one's disk
    elsewhere.memory.next_id = 1500
    step(elsewhere, 2.1, m("a1", 11, failures=1), m("b1", 11))
    keep.write_state(keep.snapshot(elsewhere.memory))
    memory = Keep(str(tmp_path)).load()
    assert memory.last is None
    assert memory.next_id > 1501
    assert memory.highest == 11


def test_a_successor_that_knows_no_quorum_takes_the_run_as_far_as_it_is(keep: Keep) -> None:
    it = killed_and_back(running("ab"), keep, 2.0, quorum_kept=False)
    assert step(it, 2.1, m("a1", 300), m("b1", 300)).ids == ("a1", "b1")  # what is saved may be seconds old


@pytest.mark.parametrize("highest", [MOST_STEPS, 2**62, -1])
def test_a_step_that_no_training_takes_is_damage(keep: Keep, highest: int) -> None:
    memory = Memory(highest=highest)
    keep.write_state(keep.snapshot(memory))
    with pytest.raises(ValueError, match=rf"lighthouse.json is damaged .*{highest}"):
        keep.load()


def test_a_poisoned_quorum_file_is_no_quorum(keep: Keep) -> None:
    it = running("ab")
    keep.write_state(keep.snapshot(it.memory))
    keep.write_quorum(protobuf.write_quorum(Quorum(1, (m("a1", 2**62),)), 1.5))
    memory = keep.load()
    assert (memory.last, memory.highest) == (None, 10)


def test_a_damaged_state_is_an_error_and_not_a_fresh_start(keep: Keep, tmp_path: Path) -> None:
    (tmp_path / "lighthouse.json").write_text('{"reserved": 5')
    with pytest.raises(ValueError, match="damaged"):
        keep.load()


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


def test_a_group_that_was_set_aside_takes_part_again_as_soon_as_its_manager_is_heard() -> None:
    it = running("abc")
    heard(it, SILENT_AT, "a1", "b1")
    before = step(it, SILENT_AT, m("a1", 11), m("b1", 11))
    now = SILENT_AT + 1
    assert heard(it, now, "a1", "b1", "c1") == [messages.GroupAside(2, 0, False, TIMEOUT + 1)]
    it.ask(m("a1", 12), now)
    it.ask(m("b1", 12), now)
    quorum = step(it, now, m("c1", 11))
    assert quorum.ids == ("a1", "b1", "c1")
    assert quorum.id > before.id


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
    heard(it, SILENT_AT + 0.1, "a1", "b1", "c1")
    assert step(it, SILENT_AT + 0.2, m("a1", 10), m("b1", 10), m("c1", 10)).id == 2


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
