"""The handshake lets in holders of the run's key, for one address, once; all others are refused and learn nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from ftslurm.security import handshake
from ftslurm.security.handshake import ANSWER, CHALLENGE, PROOF, Refused, admit, answer, challenge

KEY, OTHER = b"k" * 32, b"o" * 32
HERE = "node1:29510"
THERE = f"{HERE}/store"


def test_two_that_have_the_key_prove_it_to_each_other() -> None:
    said = challenge()
    sent, expected = answer(KEY, said, THERE)
    admitted = admit(KEY, said, sent, HERE)
    assert (len(said), len(sent), len(expected)) == (CHALLENGE, ANSWER, PROOF)
    assert admitted is not None
    assert admitted.service == "store"
    assert admitted.proof == expected


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


def both(server: Callable[[socket.socket], None], client: Callable[[socket.socket], None]) -> list[BaseException]:
    """Run both sides; return what they raise."""
    ends = socket.socketpair()
    raised: list[BaseException] = []

    def run(side: Callable[[socket.socket], None], end: socket.socket) -> None:
        try:
            with end:
                side(end)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip((server, client), ends, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return raised


def test_over_a_connection_not_a_byte_of_what_follows_is_lost() -> None:
    heard = []

    def server(end: socket.socket) -> None:
        end.settimeout(17.0)
        handshake.demand(end, KEY, HERE, "store")
        assert end.gettimeout() == 17.0
        heard.append(end.recv(100))
        end.sendall(b"welcome")

    def client(end: socket.socket) -> None:
        handshake.introduce(end, KEY, THERE)
        assert end.gettimeout() is None
        end.sendall(b"hello")
        heard.append(end.recv(100))

    assert both(server, client) == []
    assert sorted(heard) == [b"hello", b"welcome"]


def test_a_stranger_gets_neither_in_nor_an_answer() -> None:
    raised = both(
        lambda end: handshake.demand(end, KEY, HERE, "store"), lambda end: handshake.introduce(end, OTHER, THERE)
    )
    assert sorted(type(error).__name__ for error in raised) == ["ConnectionResetError", "Refused"]
    raised = both(
        lambda end: handshake.demand(end, KEY, HERE, "checkpoint"), lambda end: handshake.introduce(end, KEY, THERE)
    )
    assert any(isinstance(error, Refused) for error in raised)


def test_who_says_nothing_is_not_waited_for() -> None:
    raised = both(
        lambda end: handshake.demand(end, KEY, HERE, "store", patience_s=0.1),
        lambda end: end.recv(1000) and end.recv(1),
    )
    assert [type(error) for error in raised] == [TimeoutError]


def test_a_server_that_cannot_prove_itself_is_told_nothing() -> None:
    said = []

    def impostor(end: socket.socket) -> None:
        end.sendall(challenge())
        end.recv(ANSWER)
        end.sendall(b"p" * PROOF)
        said.append(end.recv(100))

    raised = both(impostor, lambda end: handshake.introduce(end, KEY, THERE))
    assert [type(error) for error in raised] == [Refused]
    assert said == [b""]
