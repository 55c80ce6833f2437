"""Connections that stand still are shut down; those on which bytes arrive, or wait to be read, are not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ftslurm.worker.transfers import Transfers

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        yield client, accepted


def looks(transfers: Transfers, seconds: float, most: int = 9) -> int:
    """Look again and again, until `most` were shut down; return how many."""
    ended, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline and ended < most:
        ended += transfers.hang_up_still(0.2)
        time.sleep(0.02)
    return ended


def test_one_that_waits_for_a_silent_peer_ends(pair: Pair) -> None:
    ours, transfers = pair[0], Transfers()
    transfers.add(ours)
    threading.Timer(0.1, looks, (transfers, 20.0, 1)).start()
    ours.settimeout(20.0)
    assert ours.recv(1) == b""


def test_one_that_sends_to_a_peer_that_does_not_read_ends(pair: Pair) -> None:
    ours, transfers = pair[0], Transfers()
    transfers.add(ours)
    looking = threading.Timer(0.1, looks, (transfers, 20.0, 1))
    looking.start()
    ours.settimeout(20.0)
    with pytest.raises(BrokenPipeError):
        ours.sendall(bytes(64 << 20))
    looking.join()


def test_one_on_which_bytes_move_goes_on_in_both_directions(pair: Pair) -> None:
    ours, theirs, transfers = *pair, Transfers()
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.05):
            theirs.sendall(b"x")

    def read() -> None:
        while ours.recv(1) == b"x":
            pass

    for connection in pair:
        transfers.add(connection)
    threads = [threading.Thread(target=each) for each in (send, read)]
    for thread in threads:
        thread.start()
    assert looks(transfers, 0.6) == 0
    over.set()
    theirs.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()


def test_one_whose_bytes_are_not_read_yet_goes_on(pair: Pair) -> None:
    ours, theirs, transfers = *pair, Transfers()
    transfers.add(ours)
    theirs.sendall(b"state")
    assert looks(transfers, 0.4) == 0
    assert ours.recv(5) == b"state"


def test_one_that_is_closed_is_forgotten(pair: Pair) -> None:
    transfers = Transfers()
    for connection in pair:
        transfers.add(connection)
        connection.close()
    assert looks(transfers, 0.3) == 0
