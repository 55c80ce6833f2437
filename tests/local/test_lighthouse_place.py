"""A Lighthouse's address: its guard's port, which is the requested one, or another if it may move."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import guarded_network
import pytest

from ftslurm.guard.gateway import Gateway
from ftslurm.lighthouse import endpoint


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with guarded_network.asked() as made:
        yield made


def test_it_moves_if_the_port_of_its_predecessor_stays_in_use(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        url = endpoint.reserve(gateway, port)
    assert urlsplit(url).port not in (None, port)
    assert url.endswith("/lighthouse")


def test_it_waits_for_a_predecessors_port(gateway: Gateway) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = int(taken.getsockname()[1])
    threading.Timer(0.3, taken.close).start()
    assert endpoint.reserve(gateway, port) == f"http://127.0.0.1:{port}/lighthouse"
