"""Arbitrary files, requests and orders of the Lighthouse are refused as documented, or accepted."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import manager_requests
import pytest
from fuzz import TEXTS, tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.lighthouse.last_quorum import LastQuorum
from ftslurm.lighthouse.protobuf import Malformed, read_heartbeat, read_quorum, read_request, write_quorum
from ftslurm.lighthouse.quorum import Ask, Member, Quorum, Rules
from ftslurm.lighthouse.registry import MOST_STEPS, Book

INT64, UINT64 = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
NEAR = st.one_of(st.integers(0, 12), st.sampled_from([2**53 - 1, 2**53, 2**63 - 1]))
MEMBERS = st.builds(
    Member,
    replica_id=st.sampled_from(["a:1", "b:1", "a:2", "", "x" * 1024, "\0"]),
    address=st.sampled_from(["", "http://n1:1"]),
    store_address=st.sampled_from(["n1:1", "n2:1", "n1:2", ""]),
    step=NEAR,
    world_size=st.one_of(st.just(1), UINT64),
    shrink_only=st.booleans(),
    commit_failures=st.one_of(st.just(0), INT64),
    data=st.sampled_from(["", "{}", "\0" * 100]),
)


def test_any_last_quorum_is_believed_or_forgotten(tmp_path: Path) -> None:
    file = LastQuorum(str(tmp_path))
    quorums = st.builds(Quorum, INT64, st.lists(MEMBERS, max_size=2).map(tuple))
    whole = st.builds(lambda quorum: write_quorum(quorum, 1.0), quorums)

    @tried(80)
    @given(data=st.one_of(whole, st.binary(max_size=40)), cut=st.integers(0, 60), boot=st.booleans())
    def loaded(data: bytes, cut: int, boot: bool) -> None:
        head = struct.pack("!16sII", file._boot if boot else bytes(16), len(data), zlib.crc32(data))
        (tmp_path / "lighthouse.quorum").write_bytes((head + data)[: cut or None] if cut < 30 else head + data)
        quorum = file.load()
        assert quorum is None or all(member.step < MOST_STEPS for member in quorum.members)

    loaded()


@tried(400)
@given(
    data=st.one_of(
        st.binary(max_size=80),
        st.builds(manager_requests.quorum, MEMBERS),
        st.builds(manager_requests.heartbeat, st.text()),
    )
)
def test_any_bytes_are_a_message_of_torchfts_or_malformed(data: bytes) -> None:
    for read in (read_request, read_heartbeat, read_quorum):
        try:
            read(data)
        except Malformed:
            continue


@tried(150)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["ask", "beat", "form", "evict", "announce", "prune"]), MEMBERS), max_size=25
    )
)
def test_whoever_asks_the_book_never_fails(moves: list[tuple[str, Member]]) -> None:
    book = Book(Rules(1, 1.0, 5.0), 0.0)
    for now, (move, member) in enumerate(moves):
        match move:
            case "ask" if isinstance(answer := book.ask(member, now), Ask) and now % 3 == 0:
                book.withdraw(answer)
            case "beat":
                book.beat(member.replica_id, now)
            case "evict":
                book.evict(member.step % 3, now, member.store_address)
            case "announce":
                book.announce(member.step % 3, now, member.store_address)
            case "prune":
                book.prune(now)
        if (quorum := book.form(now)) is not None:
            assert read_quorum(write_quorum(quorum, 1.0)) == quorum
    assert 0 <= book.highest < MOST_STEPS


@pytest.mark.parametrize("step", [-1, 2**53, 10**30])
def test_no_history_begins_at_a_step_that_cannot_be(step: int) -> None:
    book = Book(Rules(1, 1.0, 5.0), 0.0, highest=12)
    with pytest.raises(ValueError, match="not a step"):
        book.new_history(step)
    assert book.highest == 12


@tried(100)
@given(text=TEXTS)
def test_a_heartbeat_of_any_name_is_read(text: str) -> None:
    try:
        data = manager_requests.heartbeat(text)
    except (ValueError, UnicodeError):  # half of a character cannot even be sent
        return
    assert read_heartbeat(data) == text
