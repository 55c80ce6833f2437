"""The handshake lets in holders of the run's key, for one address, once; all others are refused and learn nothing."""

from __future__ import annotations

import pytest

from ftslurm.security.handshake import ANSWER, CHALLENGE, PROOF, Refused, admit, answer, challenge

KEY, OTHER = b"k" * 32, b"o" * 32
HERE = "node1:29510"
THERE = f"{HERE}/store"


def test_two_that_have_the_key_prove_it_to_each_other() -> None:
    said = challenge()
    sent, expected = answer(KEY, said, THERE)
    admitted = admit(KEY, said, sent, HERE)
    assert (len(said), len(sent), len(expected)) == (CHALLENGE, ANSWER, PROOF)
    assert admitted == ("store", expected)


@pytest.mark.parametrize(
    ("key", "here"),
    [(OTHER, HERE), (KEY, "node1:29511"), (KEY, "node2:29510")],
    ids=["another run's key", "another port", "another node"],
)
def test_an_answer_that_was_not_made_for_us_is_refused(key: bytes, here: str) -> None:
    said = challenge()
    assert admit(key, said, answer(KEY, said, THERE)[0], here) is None


def test_an_answer_is_good_for_its_challenge_and_its_service_alone() -> None:
    said, later = challenge(), challenge()
    sent, _ = answer(KEY, said, THERE)
    assert admit(KEY, later, sent, HERE) is None
    other = sent.replace(b"store".ljust(32, b"\0"), b"lighthouse".ljust(32, b"\0"))
    assert other != sent
    assert admit(KEY, said, other, HERE) is None
    for position in range(ANSWER):
        wrong = bytearray(sent)
        wrong[position] ^= 1
        assert admit(KEY, said, bytes(wrong), HERE) is None


def test_a_client_answers_nobody_but_a_gate() -> None:
    for said in (b"HTTP/1.1 400 Bad Request\r\n".ljust(CHALLENGE, b"x"), challenge()[:-1], b""):
        with pytest.raises(Refused, match="node1:29510/store is held by something that is not of this run"):
            answer(KEY, said, THERE)
    with pytest.raises(Refused, match="at most 32 bytes"):
        answer(KEY, challenge(), f"{HERE}/{'x' * 33}")
