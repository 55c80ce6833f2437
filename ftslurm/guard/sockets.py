"""What the connections of a guard's network have in common, on asyncio: accepting, time limits, relaying, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket

from ftslurm.errors import complain

CHUNK = 65536  # bytes that are held for a connection that is not there yet; beyond it the sender has to wait
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
        self.tasks: set[asyncio.Task[None]] = set()

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
        """Accept one connection: a flood must not keep a guard from its other work."""
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
        task = loop.create_task(self._serve(inbound, peer))
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    async def _serve(self, inbound: socket.socket, peer: Host) -> None:
        with inbound, contextlib.suppress(OSError):
            await self.serve(inbound, peer)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a connection has failed", "exception": error})


class End(asyncio.Protocol):
    """One end of a relay: what it receives goes to the other end, and is held as long as there is none.

    Args:
        other: the other end, which is connected already.
    """

    transport: asyncio.Transport

    def __init__(self, other: End | None = None) -> None:
        self.other = other
        self.held = bytearray()
        self.has_ended = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def attach(self, connection: socket.socket) -> None:
        """Take over a connected socket; from now on it is closed with this end."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self, connection)

    def abort(self) -> None:
        """Close the connection now, and with it the other end; bytes that the kernel has still arrive."""
        if hasattr(self, "transport"):
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.max_size = CHUNK  # type: ignore[attr-defined]  # for more, each read asks the kernel for memory: 10 us
        first = self.other
        if first is None:
            return
        if first.transport.is_closing():
            transport.abort()
            return
        first.other = self
        first.transport.resume_reading()
        transport.write(bytes(first.held))
        first.held.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
            return
        self.held += data
        if len(self.held) >= CHUNK:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Handle that the peer sends no more; return whether it may still receive."""
        self.has_ended = True
        if self.other is None:
            return False
        if self.other.has_ended:
            self.other.transport.close()
            return False
        self.other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and (error is not None or not (self.has_ended and self.other.has_ended)):
            self.other.abort()
        self.closed.set_result(None)


async def relay(first: End, connection: socket.socket) -> None:
    """Copy between an end and another connection until both have hung up, or one is broken.

    Bytes that have been written to either side still arrive.
    """
    second = End(first)
    try:
        await second.attach(connection)
        await asyncio.wait([first.closed, second.closed])
    finally:
        for end in (first, second):
            end.abort()


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
