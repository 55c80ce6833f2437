"""The network of a guard in a thread of the test's process: its parts, or all of it with the worker's questions."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ftslurm.guard.admission import Admission
from ftslurm.guard.forwarder import Forwarder
from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.interfaces import Reach
from ftslurm.guard.network import Network
from ftslurm.guard.sockets import Listener, Refusals

KEY = b"k" * 32
PATIENCE_S = 60.0  # a bound for a hang, not a claim about speed
T = TypeVar("T")


class Loop:
    """An event loop with admissions and forwarders. At its end nothing is left, and no exception was lost."""

    def __init__(self) -> None:
        self.before = descriptors()
        self.loop = asyncio.new_event_loop()
        self.errors: list[object] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.refusals = Refusals()
        self.warnings: list[str] = []
        self.listeners: list[Listener] = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def do(self, call: Callable[[], T]) -> T:
        """Make a call in the thread of the loop."""

        async def make() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(PATIENCE_S)

    def admission(self, name: str = "127.0.0.1") -> Admission:
        made = Admission(lambda: KEY, self.refusals)
        self.do(lambda: made.open(name, name if name == "127.0.0.1" else ""))
        self.listeners.append(made)
        return made

    def forwarder(self, url: str, key: bytes = KEY, moves: bool = True) -> Forwarder:
        made = self.do(lambda: Forwarder(url, lambda: key, self.refusals, self.warnings.append, moves))
        self.listeners.append(made)
        return made

    def cpu_s(self) -> float:
        """Return the CPU time of the thread so far."""
        assert self.thread.ident
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))

    def close(self) -> None:
        for one in self.listeners:
            asyncio.run_coroutine_threadsafe(one.close(), self.loop).result(PATIENCE_S)
        until(lambda: not self.do(lambda: [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]))
        self.do(lambda: None)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.loop.close()
        assert not self.errors, self.errors

    def leaves_nothing(self) -> None:
        """Wait until there are no more descriptors than at the start: the test has closed its own."""
        until(lambda: descriptors() <= self.before)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def asked(*keys: bytes) -> Iterator[Gateway]:
    """Run a guard's network that has these keys; yield the worker's gateway to it."""
    requests, questions = pair()
    network, gateway = Network(requests, os.getpid()), Gateway(questions)
    for key in keys:
        network.learn(key.hex())
    gateway.reach = Reach("127.0.0.1", "127.0.0.1")
    yield gateway
    network.close()
