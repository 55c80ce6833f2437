"""The network side of a guard, in a thread of its own: forwarders for its worker's outgoing connections (forwarder.py),
and the admission of incoming ones (admission.py). It answers the worker's requests (gateway.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ftslurm.guard import processes
from ftslurm.guard.admission import Admission
from ftslurm.guard.forwarder import Forwarder
from ftslurm.guard.gateway import taken
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.guard.sockets import Refusals, raise_file_limit
from ftslurm.protocol import addresses, messages

T = TypeVar("T")
REPLACED = (
    "the script of rank {} has replaced its process (os.exec) with a training. ftslurm cannot see its steps, and the "
    "store of its group is gone. Name the other program in job.script, or run it with runpy.run_path"
)
IN_A_CHILD = (
    "the script of rank {} makes its Manager in a child process (subprocess, mp.spawn), where ftslurm cannot see its "
    "steps. ftslurm starts one process per rank (groups.workers): make the Manager there. A program that only starts a "
    "training does not need to run: name the training in job.script, or start it with runpy.run_path"
)
SESSIONS = "/new_session"  # the path that torchft's ParameterServer serves
CLOSE_S = 2.0  # longest wait for connections to close, at the end of a worker


class Network:
    """The forwarders and the admission of one guard. Its public methods may be called in any other thread.

    Args:
        requests: socket of the worker's questions (gateway.py).
        worker: its process.
    """

    def __init__(self, requests: socket.socket, worker: int) -> None:
        self.requests = requests
        self.worker = worker
        self.outsider = ""  # a program that is not the worker's, and trains; "": there is none
        self.key = b""  # b"": it is not known yet
        self.warnings: deque[str] = deque()  # what the user has to know
        self.refusals = Refusals()
        self._admission = Admission(lambda: self.key, self.refusals)
        self._lighthouse: Forwarder | None = None
        self._servers: list[Forwarder] = []  # to the parameter server of each serving group
        self._forwarders: dict[str, Forwarder] = {}  # to stores, managers and checkpoint servers, by address
        self._answers: dict[str, Callable[..., object]] = {
            "reserve": self._admission.open,
            "publish": self._publish,
            "take_over": lambda service, given: self._admission.offer(service, given),
            "withdraw": self._admission.withdraw,
            "forwarder": self._forwarder,
            "dial": self._dial,
            "refused": self.refusals.tell,
        }
        raise_file_limit()  # of the guard; the worker, which is forked already, keeps its own
        requests.setblocking(False)  # a worker that does not read its answers must not block the guard
        self._loop = asyncio.new_event_loop()
        self._loop.add_reader(requests, self._asked)
        threading.Thread(target=self._run, name="network", daemon=True).start()

    # --- messages of the controller ---------------------------------------------------------------------------------

    def learn(self, key: str) -> None:
        """Note the run's key, in hexadecimal; the first one counts."""
        self.key = self.key or bytes.fromhex(key)

    def assigned(self, assign: messages.Assign) -> messages.Assign:
        """Return the assignment with the addresses of forwarders, which stay the same when the servers move."""
        return self._do(lambda: self._assigned(assign))

    def begun(self, begin: messages.Begin) -> messages.Begin:
        """Return the message with a forwarder to the group's store; `public` is its address for other groups."""
        public = f"{begin.addr}:{begin.port}/{addresses.STORE}"
        host, _, port = self._do(lambda: self._forwarder(public)).rpartition(":")
        return replace(begin, addr=host, port=int(port), public=public)

    def moved(self, url: str) -> None:
        """Set the address of the Lighthouse."""
        if self._lighthouse is not None:
            self._loop.call_soon_threadsafe(self._lighthouse.go_to, url)

    def serving(self, urls: Sequence[str]) -> None:
        """Set the addresses of the parameter servers."""
        for forwarder, url in zip(self._servers, urls, strict=False):
            self._loop.call_soon_threadsafe(forwarder.go_to, url)

    def close(self) -> None:
        """Close all connections and ports, and end the thread."""
        closed = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            closed.result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException:  # without its network the worker would wait for ever
            traceback.print_exc()
            os._exit(1)
        self._loop.close()

    def _do(self, call: Callable[[], T]) -> T:
        """Make a call in the thread; return its result."""

        async def make() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result()

    async def _close(self) -> None:
        for listener in (self._admission, self._lighthouse, *self._servers, *self._forwarders.values()):
            if listener is not None:
                await listener.close()
        await asyncio.sleep(0)  # aborted connections are closed

    def _assigned(self, assign: messages.Assign) -> messages.Assign:
        self._lighthouse = self._new(assign.lighthouse) if assign.lighthouse else None
        self._servers = [self._new(server) for server in assign.servers]
        return replace(
            assign,
            lighthouse=self._lighthouse.url if self._lighthouse else "",
            servers=tuple(one.url + SESSIONS for one in self._servers),
        )

    def _new(self, url: str, moves: bool = True) -> Forwarder:
        return Forwarder(url, lambda: self.key, self.refusals, self.warnings.append, moves, self._look)

    def _look(self, forwarder: Forwarder, inode: int) -> None:
        """Note a client that the servers of the run cannot serve: it is not the program that ftslurm has prepared."""
        if processes.holds(self.worker, inode):
            if processes.has_exec(self.worker):
                self.outsider = REPLACED
        elif forwarder is self._lighthouse and os.environ.get("FTSLURM_LIGHTHOUSE") != "torchft":
            below = [pid for pid in processes.descendants(self.worker) if processes.holds(pid, inode)]
            if any("torchft" in processes.read(f"/proc/{pid}/maps") for pid in below):
                self.outsider = IN_A_CHILD

    def _forwarder(self, address: str) -> str:
        """Return 127.0.0.1:PORT of a forwarder to that server of the run; other addresses unchanged.

        Raises:
            OSError: no port is available.
        """
        forwarder = self._forwarder_to(address)
        return address if forwarder is None else forwarder.url.removeprefix("http://")

    def _forwarder_to(self, address: str) -> Forwarder | None:
        where = addresses.read(address)
        if where is None or where.service is None:
            return None
        if where.dialled not in self._forwarders:  # they stay: each restart of a group adds one or two
            self._forwarders[where.dialled] = self._new(where.dialled, moves=False)
        return self._forwarders[where.dialled]

    # --- requests of the worker -------------------------------------------------------------------------------------

    def _asked(self) -> None:
        number = None
        try:
            data, given = taken(self.requests)
            if not data:
                self._loop.remove_reader(self.requests)
                self.requests.close()
                return
            asked = json.loads(data)
            number = asked.pop("number")
            more = {} if given is None else {"given": given}
            answer: dict[str, object] = {"value": self._answers[asked.pop("question")](**asked, **more)}
        except BlockingIOError:
            return
        except Exception as error:  # a malformed question must not end the guard
            answer = {"error": str(error) or repr(error)}
        answer["number"] = number
        with contextlib.suppress(OSError):
            self.requests.send(json.dumps(answer).encode())

    def _publish(self, service: str, given: socket.socket) -> None:
        """Offer a server that listens."""
        listener = FilteredListener(given)
        if not listener.filtered:
            words = "nothing: this kernel cannot keep others on this machine from the"
            self.refusals.tell("filter", f"{words} {service} of this worker")
        self._admission.offer(service, listener)

    def _dial(self, address: str, given: socket.socket) -> None:
        """Connect to a server, and give the worker the connection."""
        forwarder = self._forwarder_to(address)
        assert forwarder is not None
        forwarder.begin(forwarder.hand_over(given))
