"""A guard's network in a thread of the test's process, and the worker's connection to it."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.network import Network

PATIENCE_S = 20.0


@contextmanager
def asked(*keys: bytes) -> Iterator[Gateway]:
    """Serve a guard's network that has these keys; yield the worker's gateway to it."""
    selector, over = selectors.PollSelector(), threading.Event()
    requests, questions = pair()
    network = Network(selector, requests, "127.0.0.1")
    for key in keys:
        network.learn(key.hex())

    def serve() -> None:
        while not over.is_set():
            for key, events in selector.select(min(0.01, network.tend())):
                key.data(events)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield Gateway(questions)
    over.set()
    thread.join(PATIENCE_S)
