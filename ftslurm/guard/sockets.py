"""What the connections of a guard's network have in common, on asyncio: accepting, time limits, relaying, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any

from ftslurm.errors import complain

CHUNK = 32768  # bytes that are read at once; a relay holds a few of them
REST_S = 0.5  # pause when there are no file descriptors or no memory, instead of a busy loop

Host = tuple[str, int]  # the address of a client


class Refusals:
    """Reports to the step's log, only the first of each kind: a stranger must not fill the log."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def tell(self, kind: str, words: str) -> None:
        """Report a refusal, if it is the first of its kind."""
        if kind not in self.told:
            self.told.add(kind)
            complain(f"refused: {words} (more of the kind are not told)")


class TimeLimit:
    """Ends what its block waits for, after `seconds` or when `end` is called: then the block raises TimeoutError.

    Nothing else cancels a connection's task, so what has happened is never in doubt. (asyncio.timeout is for 3.11.)
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = False

    def __enter__(self) -> TimeLimit:
        self.task = asyncio.current_task()
        self.timer = asyncio.get_running_loop().call_later(self.seconds, self.end)
        return self

    def end(self) -> None:
        """End it now."""
        if not self.over and self.task is not None:
            self.over = True
            self.task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.timer.cancel()
        if self.over and kind is asyncio.CancelledError:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
        self.over = True


class Listener:
    """Accepts connections, and runs `serve` for each in a task; all in one event loop that nothing may block."""

    def __init__(self, refusals: Refusals) -> None:
        self.refusals = refusals
        self.listener: socket.socket | None = None
        self.tasks: set[asyncio.Task[None]] = set()  # of the connections

    def listen(self, listener: socket.socket) -> None:
        """Accept the connections of a socket from now on."""
        listener.setblocking(False)
        self.listener = listener
        self._await_next()

    async def serve(self, inbound: socket.socket, peer: Host) -> None:
        """Serve one connection, which is closed afterwards.

        Raises:
            OSError: it is broken, or late.
        """
        raise NotImplementedError

    def begin(self, connection: Coroutine[Any, Any, None]) -> None:
        """Do something with a connection in a task."""
        task = asyncio.get_running_loop().create_task(connection)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        """Close all connections and the port."""
        if self.listener is not None:
            asyncio.get_running_loop().remove_reader(self.listener)
            self.listener.close()
            self.listener = None
        while self.tasks:  # a task whose time was up at this moment has to be told again
            for task in self.tasks:
                task.cancel()
            await asyncio.wait(self.tasks, timeout=REST_S)

    def _await_next(self) -> None:
        if self.listener is not None:
            asyncio.get_running_loop().add_reader(self.listener, self._accept, self.listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection: a flood must not keep a guard from its other work.

        asyncio's own `sock_accept` loses a connection, and keeps it open, if it is cancelled as one comes.
        """
        loop = asyncio.get_running_loop()
        try:
            inbound, peer = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            loop.remove_reader(listener)
            loop.call_later(REST_S, self._await_next)
            return
        inbound.setblocking(False)
        self.begin(self._serve(inbound, peer))

    async def _serve(self, inbound: socket.socket, peer: Host) -> None:
        with inbound, contextlib.suppress(OSError):
            await self.serve(inbound, peer)


async def relay(*connections: socket.socket) -> None:
    """Copy between two connections until both have hung up, or one is broken.

    Bytes that have been written to either side still arrive.

    Raises:
        OSError: one is broken.
    """
    ends = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    try:
        for one in connections:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ends.append(await asyncio.open_connection(sock=one, limit=CHUNK))
            # For more, each read asks the kernel for memory: 10 us.
            ends[-1][1].transport.max_size = CHUNK  # type: ignore[attr-defined]
        (first, to_first), (second, to_second) = ends
        await asyncio.gather(_copy(first, to_second), _copy(second, to_first))
        for _, writer in ends:
            writer.close()
            await writer.wait_closed()
    finally:
        for _, writer in ends:
            writer.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    target.write_eof()


def has_hung_up(connection: socket.socket) -> bool:
    """Return whether the peer sends no more, whatever is still to be read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def end_if_silent(connection: socket.socket, after_s: int) -> None:
    """Have the kernel end a connection whose peer acknowledges nothing, or takes nothing, for so long.

    Without TCP_USER_TIMEOUT it would wait a quarter of an hour for data to be acknowledged; keepalive is silent then.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, after_s // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, after_s // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, after_s * 1000)


def end_if_gone(connection: socket.socket, after_s: int) -> None:
    """Have the kernel end a connection if the machine at its other end vanishes, which closes none.

    A peer that is stopped or swaps keeps its connection: its kernel answers, with a full window. TCP_USER_TIMEOUT
    counts that time, too, so a thread lifts it meanwhile.
    """

    def lift() -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                time.sleep(1.0)
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148)
                probes, unacknowledged, unsent = info[3], info[24:28], info[144:]  # linux/tcp.h; empty: an old kernel
                full = any(unsent) and not any(unacknowledged) and not probes
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0 if full else after_s * 1000)

    end_if_silent(connection, after_s)
    threading.Thread(target=lift, daemon=True).start()


async def exactly(connection: socket.socket, count: int, data: bytearray | None = None) -> bytes:
    """Receive so many bytes, and not one beyond them: those are for the server. `data` gets them as they come.

    Raises:
        OSError: the connection is broken, or the peer has hung up.
    """
    data = bytearray() if data is None else data
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(connection, count - len(data))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        data += piece
    return bytes(data)


def raise_file_limit() -> None:
    """Raise this process's limit of file descriptors as far as it may, at most to 65536: one for each connection."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))
