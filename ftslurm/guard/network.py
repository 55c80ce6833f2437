"""The network side of a guard: proxies for its worker's outgoing connections (proxy.py), and the gate for incoming ones
(gate.py). It answers the worker's requests (gateway.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ftslurm.guard.gate import Gate, TakesOver
from ftslurm.guard.gateway import LONGEST
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.guard.proxy import Proxy
from ftslurm.guard.sockets import Refusals, raise_file_limit
from ftslurm.protocol import addresses, messages

SESSIONS = "/new_session"  # the path that torchft's ParameterServer serves
MOST_DOORS = 64  # proxies to stores and managers; the least recently requested one is closed first


class Network:
    """The proxies and the gate of one guard.

    Args:
        selector: its owner calls `key.data(events)` for ready sockets, and `tend`.
        requests: socket of the worker's questions (gateway.py).
        name: this machine's name for other nodes of the run, until the worker has found a better one (interfaces.py);
            "127.0.0.1" in a local run.
    """

    def __init__(self, selector: selectors.BaseSelector, requests: socket.socket, name: str) -> None:
        self.selector = selector
        self.requests = requests
        self.key = b""
        self.refusals = Refusals()
        self.gate = Gate(selector, name, self.the_key, self.refusals)
        self.lighthouse: Proxy | None = None  # proxy to the Lighthouse
        self.servers: list[Proxy | None] = []  # proxies to the parameter server of each serving group
        self.doors: dict[str, Proxy] = {}  # proxies to stores and managers, by address
        self.store = ""  # address of the group's own store
        raise_file_limit()  # of the guard; the worker, which is forked already, keeps its own
        requests.setblocking(False)  # a worker that does not read its answers must not block the guard
        selector.register(requests, selectors.EVENT_READ, self._asked)

    def learn(self, key: str) -> None:
        """Note the run's key, in hexadecimal; the first one counts."""
        self.key = self.key or bytes.fromhex(key)

    def the_key(self) -> bytes:
        """Return the run's key; b"": it is not known yet."""
        return self.key

    def tend(self) -> float:
        """Run due timers. Return the seconds until the next one."""
        doors = [door for door in (self.lighthouse, *self.servers, *self.doors.values()) if door is not None]
        return min([self.gate.tend(), *(door.tend() for door in doors)])

    # --- messages of the controller ---------------------------------------------------------------------------------

    def assigned(self, assign: messages.Assign) -> messages.Assign:
        """Return the assignment with the addresses of proxies, which stay the same when the servers move."""
        url, servers = assign.lighthouse, assign.servers
        self.lighthouse = self._door(url) if url else None
        self.servers = [self._door(server) for server in servers]
        both = zip(self.servers, servers, strict=True)
        return replace(
            assign,
            lighthouse=self.lighthouse.url if self.lighthouse else url,
            servers=tuple(door.url + SESSIONS if door else server for door, server in both),
        )

    def begun(self, begin: messages.Begin) -> messages.Begin:
        """Return the message with a proxy to the group's store; `public` is the store's address for other groups."""
        self.store = public = store_address(begin.addr, begin.port)
        try:
            host, _, port = self.door(public).rpartition(":")
        except OSError as error:
            self.refusals.tell("port", f"the group's store cannot be reached: {error}")
            return begin
        return replace(begin, addr=host, port=int(port), public=public)

    def moved(self, url: str) -> None:
        """Set the address of the Lighthouse."""
        if self.lighthouse is not None:
            self.lighthouse.go_to(url)

    def serving(self, urls: Sequence[str]) -> None:
        """Set the addresses of the parameter servers."""
        for door, url in zip(self.servers, urls, strict=False):
            if door is not None:
                door.go_to(url)

    # --- requests of the worker -------------------------------------------------------------------------------------

    def door(self, address: str) -> str:
        """Return 127.0.0.1:PORT of a proxy to that server of the run; other addresses unchanged.

        Raises:
            OSError: no port is available.
        """
        where = addresses.read(address)
        if where is None or where.service is None:
            return address
        found = self.doors.pop(where.dialled, None)
        if found is None:
            self._make_room()
            found = Proxy(self.selector, where.dialled, key=self.the_key, refusals=self.refusals, moves=False)
        self.doors[where.dialled] = found
        return found.url.removeprefix("http://")

    def _make_room(self) -> None:
        """At MOST_DOORS proxies, close the least recently requested one that is not in use."""
        idle = (address for address, door in self.doors.items() if not door.links and address != self.store)
        if len(self.doors) >= MOST_DOORS and (eldest := next(idle, None)) is not None:
            self.doors.pop(eldest).close()

    def _door(self, url: str) -> Proxy | None:
        """Return a proxy to a server that may move; None: no port is available, so the server must not move."""
        try:
            return Proxy(self.selector, url, key=self.the_key, refusals=self.refusals)
        except OSError:
            return None

    def _asked(self, _events: int) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.requests, LONGEST, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.selector.unregister(self.requests)
            self.requests.close()
            return
        number = None
        try:
            asked = json.loads(data)
            number = asked["number"]
            answer: dict[str, object] = {"value": self._answer(asked, descriptors)}
        except Exception as error:  # a malformed question must not end the guard
            answer = {"error": str(error) or repr(error)}
        for left in descriptors:  # those that no server has taken
            os.close(left)
        answer["number"] = number
        with contextlib.suppress(OSError):
            self.requests.send(json.dumps(answer).encode())

    def _answer(self, asked: dict[str, Any], descriptors: list[int]) -> object:
        match asked["question"]:
            case "announce":
                self.gate.announce(str(asked["host"]), str(asked["address"]))
            case "reserve":
                return self.gate.open(int(asked["port"]))
            case "take_over":
                channel = socket.socket(fileno=descriptors[0])
                descriptors.clear()
                self.gate.offer(str(asked["service"]), TakesOver(channel))
            case "publish":
                listener = socket.socket(fileno=descriptors[0])
                descriptors.clear()
                self._publish(str(asked["service"]), FilteredListener(listener))
            case "withdraw":
                self.gate.withdraw(asked["service"])
            case "door":
                return self.door(asked["address"])
            case "key":
                return self.key.hex()
            case "refused":
                self.refusals.tell(asked["kind"], asked["words"])
            case other:
                raise ValueError(f"no such question: {other!r}")
        return ""

    def _publish(self, service: str, inner: FilteredListener) -> None:
        if not inner.filtered:
            words = f"nothing: this kernel cannot keep others on this machine from the {service} of this worker"
            self.refusals.tell("filter", words)
        self.gate.offer(service, inner)


def store_address(host: str, port: int) -> str:
    """Return the address of a group's store in quorums."""
    return f"{host}:{port}/{addresses.STORE}"
