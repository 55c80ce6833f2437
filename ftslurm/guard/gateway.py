"""The worker's requests to its guard: for a forwarder to a server of the run, or to publish a server of its own.

Each question and each answer is one JSON message over a socket pair that is made before the worker is forked; the
guard's end is network.py. An answer has the number of its question, so that the answer to one that a signal handler has
cut short is ignored. The guard imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from ftslurm.guard.interfaces import Reach
from ftslurm.security import socket_owners

LONGEST = 4096  # bytes of a message
SWEEP_FOR_S = 2.0  # longest time that another user's connection takes from the kernel to the server


class Gateway:
    """The worker's end. Threads take turns. Forked children of the worker cannot use it."""

    reach: Reach  # how other nodes reach this one: set before the first `reserve`

    def __init__(self, connection: socket.socket) -> None:
        self._connection: socket.socket | None = connection
        self._turn = threading.Lock()
        self._asked = 0

    def keep(self) -> None:
        """Mark this process as the worker, so that its forked children close their copy."""
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        self._turn = threading.Lock()
        if connection is not None:
            connection.close()

    def reserve(self) -> str:
        """Return HOST:PORT of the guard's admission for this worker's servers. It never changes.

        Raises:
            OSError: no port is available.
        """
        return str(self._ask("reserve", host=self.reach.host, address=self.reach.address))

    def publish(self, service: str, port: int) -> None:
        """Make a server of this process that listens on loopback reachable for the run only.

        The connections that other users have made before are closed.

        Raises:
            OSError: the guard could not publish it, or nothing listens at the port.
        """
        with _listener_at(port) as listener:
            self._ask("publish", listener.fileno(), service=service)
        deadline = time.monotonic() + SWEEP_FOR_S
        while strangers := {
            client for client, (uid, inode) in socket_owners.clients_of(port) if uid != os.getuid() or not inode
        }:
            for sock in _own_sockets():
                with suppress(OSError):
                    if sock.getsockname()[1] == port and sock.getpeername()[:2] in strangers:
                        words = f"a connection of a stranger to the {service} of this worker, just made"
                        self._ask("refused", kind="early", words=words)
                        sock.shutdown(socket.SHUT_RDWR)
                sock.close()
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)

    def take_over(self, service: str) -> socket.socket:
        """Make a server reachable for the run only that does not listen: it is given the admitted connections.

        Returns:
            A socket that receives one connection with each message (`taken`).

        Raises:
            OSError: the guard could not publish it.
        """
        ours, theirs = pair()
        with theirs:
            self._ask("take_over", theirs.fileno(), service=service)
        return ours

    def withdraw(self, service: str) -> None:
        """Stop publishing a server that has ended."""
        self._ask("withdraw", service=service)

    def forwarder(self, address: str) -> str:
        """Return 127.0.0.1:PORT of a forwarder to a server of the run (addresses.py); other addresses unchanged.

        Raises:
            OSError: the guard has no port left.
        """
        return str(self._ask("forwarder", address=address))

    def dial(self, address: str, patience_s: float) -> socket.socket:
        """Return a connection to a server of the run (addresses.py), which the guard has made.

        Raises:
            OSError: it cannot be reached, or is not of the run.
        """
        ours, theirs = pair()
        with ours:
            with theirs:
                self._ask("dial", theirs.fileno(), address=address)
            ours.settimeout(patience_s)
            why, connection = taken(ours)
        if connection is None:
            raise ConnectionError(f"{address}: {why.decode()}")
        return connection

    def _ask(self, question: str, descriptor: int | None = None, **fields: object) -> Any:
        with self._turn:
            if self._connection is None:
                raise OSError("a process that the script has forked makes a Manager: make it in the script's own")
            self._asked += 1
            data = json.dumps({"question": question, "number": self._asked, **fields}).encode()
            socket.send_fds(self._connection, [data], [] if descriptor is None else [descriptor])
            answer: dict[str, Any] = {"number": 0}
            while answer and answer["number"] not in (self._asked, None):  # None: the question was not understood
                answer = json.loads(self._connection.recv(LONGEST) or b"{}")
        if "value" not in answer:
            raise OSError(answer.get("error") or "the guard is gone")
        return answer["value"]


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends, the guard's and the worker's. Programs that either starts do not inherit them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def taken(channel: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Return the next message, and the socket that has come with it.

    Raises:
        OSError: none comes, or something else than a socket.
    """
    data, descriptors, _, _ = socket.recv_fds(channel, LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        return data, socket.socket(fileno=descriptors[0]) if descriptors else None
    except OSError:  # it is no socket
        os.close(descriptors[0])
        raise


def _own_sockets() -> list[socket.socket]:
    """Return copies of this process's TCP sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                copy = socket.socket(fileno=os.dup(int(name)))
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    found.append(copy)
                else:
                    copy.close()
    return found


def _listener_at(port: int) -> socket.socket:
    """Return a copy of this process's socket that listens at a port.

    Raises:
        OSError: there is none.
    """
    found = None
    for sock in _own_sockets():
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and sock.getsockname()[1] == port
        if listens and found is None:
            found = sock
        else:
            sock.close()
    if found is None:
        raise OSError(f"nothing of this process listens at port {port}")
    return found
