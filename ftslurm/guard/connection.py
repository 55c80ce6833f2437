"""The guard's wire to the controller: its own stdin and stdout, or whoever has attached last.

Where groups run in other Slurm jobs than the controller, they outlive it. Its successor reaches them through a process
on their node (attach.py) that connects to the guard's abstract Unix socket. Nothing tells a task that its srun has died
(measured on Slurm 22.05: no end-of-file, and what it writes is taken and thrown away), so the guard keeps what a new
controller must know, and says it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable

from ftslurm.protocol import messages

MOST_UNSENT = 1 << 18  # bytes; who reads so slowly learns the rest from what comes later
# The last message of each of these types is said again to a new controller.
KEPT = tuple(
    kind.kind
    for kind in (
        messages.LighthouseUp,
        messages.Serving,
        messages.Served,
        messages.SessionOpened,
        messages.Done,
        messages.Failed,
        messages.Exited,
    )
)
NOTED = tuple(kind.kind for kind in (messages.Ready, messages.StoreUp, messages.Progress))  # for `adopted`
FINISH_S = 1.0  # who does not read for so long learns the end of the step from srun
# Written to disk before they are sent: the controller that hears them may kill the step, and end itself.
LEFT = (messages.Failed.kind, messages.Exited.kind)
_PEER = struct.Struct("iII")  # pid, uid, gid


def address(run: str, step: str, task: int) -> bytes:
    """The name of the socket on which the guard of this task listens, in the abstract namespace of its node.

    Args:
        run: the run directory.
        step: as what the step was launched, "standby-000/4".
    """
    words = "\0".join((os.path.abspath(run), step, str(task), str(os.getuid())))
    return b"\0ftslurm-" + hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:40].encode()


def peer_uid(peer: socket.socket) -> int:
    """Who is at the other end. Anybody on the node may take a name in the abstract namespace, so both ends ask."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(credentials)[1])


class Told:
    """What has passed by of which a new controller must hear."""

    def __init__(self) -> None:
        self.ready = self.committed = False
        self.store: tuple[str, int] | None = None
        self.assign: messages.Assign | None = None
        self.begin: messages.Begin | None = None
        self.kept: dict[str, bytes] = {}

    def reported(self, line: bytes) -> str | None:
        """Note a line of the worker, or of its end; returns its type."""
        raw = messages.parse(line)
        if raw is None:
            return None
        kind = str(raw["type"])
        if kind in KEPT:
            self.kept[kind] = line
        elif kind in NOTED:
            with contextlib.suppress(messages.BadMessage):  # the controller will say so
                match messages.FROM_WORKER.decode(raw):
                    case messages.Ready():
                        self.ready = True
                    case messages.StoreUp(addr, port):
                        self.store = addr, port
                    case messages.Progress(committed=committed) if committed:
                        self.committed = True
        return kind

    def adopted(self, node: str, rank: int | None, step: int | None) -> messages.Adopted:
        """What a new controller has to hear first; `step` is the Manager's now."""
        assign, begin = self.assign, self.begin
        return messages.Adopted(
            host=node,
            rank=rank,
            ready=self.ready,
            group=assign.group if assign else None,
            attempt=assign.attempt if assign else None,
            lighthouse=assign.lighthouse if assign else None,
            store=self.store,
            begun=begin is not None,
            floor=begin.floor if begin else None,
            step=step if self.committed else None,
        )


class Wire:
    """Lines out, bytes in; `receive` gets them, and b"" once stdin has come to its end."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        receive: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin; the silence of the controller is measured by `clock`."""
        self.selector = selector
        self.receive = receive
        self.clock = clock
        self.told = Told()
        self.heard = clock()  # when the controller was
        self.stdin_ended = False
        self.reports: int | None = None
        self.reported = messages.Lines()
        self.listener: socket.socket | None = None
        self.peer: socket.socket | None = None
        self.far: int | None = 1  # where lines go; None: nowhere, the process that had attached is gone
        self.unsent = bytearray()
        self.attached: Callable[[], None] = lambda: None
        self.story: Callable[[], list[bytes]] = list
        self.end: str | None = None
        self.left = True  # what had to be left behind is
        selector.register(0, selectors.EVENT_READ, lambda _: self._read_stdin())

    def be_adoptable(
        self, reports: int, name: bytes, attached: Callable[[], None], story: Callable[[], list[bytes]], end: str
    ) -> None:
        """Pass the worker's reports on, and let new controllers attach.

        Args:
            reports: the end of the pipe into which the worker writes whole lines.
            name: of the socket.
            attached: called whenever one has.
            story: all that one has to hear.
            end: the file in which that is left behind (last_words).
        """
        self.story, self.end = story, end
        with contextlib.suppress(OSError):
            os.unlink(end)  # of an earlier attempt with the same log folder: the Lighthouse's
        os.set_blocking(reports, False)
        os.set_blocking(1, False)
        self.reports = reports
        self.selector.register(reports, selectors.EVENT_READ, lambda _: self.pass_reports())
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(name)
        except OSError as error:
            listener.close()
            _complain(f"no other controller can adopt this task, for the name of its socket is taken: {error.strerror}")
            return
        listener.listen(4)
        listener.setblocking(False)
        self.listener, self.attached = listener, attached
        self.selector.register(listener, selectors.EVENT_READ, lambda _: self._accept())

    def say(self, line: bytes) -> None:
        """One line to the controller. If nobody listens any more, the silence rule will end us."""
        if self.reports is None and self.listener is None:
            with contextlib.suppress(OSError):
                os.write(1, line)
            return
        if self.told.reported(line) in LEFT and self.end is not None:
            self.left = leave_words(self.end, self.story())
        if self.far is not None and len(self.unsent) < MOST_UNSENT:
            self.unsent += line
            self._flush()

    def pass_reports(self) -> None:
        """What the worker has said, in whole lines."""
        while self.reports is not None:
            try:
                data = os.read(self.reports, 65536)
            except BlockingIOError:
                return
            if not data:
                self.selector.unregister(self.reports)
                self.reports = None
            for line in self.reported.feed(data):
                self.say(line + b"\n")

    def finish(self, orphan_after_s: float) -> None:
        """Let the last words out; whoever is to hear them may be slow, or gone.

        If they could not be left behind (a full disk), a controller must be heard after them, ours or another one.
        """
        said = self.clock()
        limit = said + (FINISH_S if self.left else orphan_after_s)
        while (self.unsent or not (self.left or self.heard > said)) and not self.is_cut():
            left = limit - self.clock()
            if left <= 0:
                return
            for key, events in self.selector.select(min(1.0, left)):
                key.data(events)

    def is_silent(self, limit_s: float) -> bool:
        """Whether the controller has not been heard for so long; what it has said is heard before that is judged.

        We, or the whole machine, may have been stopped meanwhile.
        """
        if self.clock() - self.heard > limit_s:
            for key, events in self.selector.select(0):
                key.data(events)
        return self.clock() - self.heard > limit_s

    def is_cut(self) -> bool:
        """Whether both pipes are closed at their other ends: slurmstepd is gone."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(1, 0)
        seen = dict(poll.poll(0))
        stdin = seen.get(0, 0)
        ended = self.stdin_ended or (stdin & (select.POLLHUP | select.POLLERR) and not stdin & select.POLLIN)
        return bool(ended and seen.get(1, 0) & (select.POLLERR | select.POLLHUP))

    def _read_stdin(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self.stdin_ended = True
            self.selector.unregister(0)
        self._hear(data)

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            peer, _ = self.listener.accept()
        except OSError:
            return
        if peer_uid(peer) != os.getuid():
            _complain(f"user {peer_uid(peer)} wanted to command this task, and was refused")
            peer.close()
            return
        self._leave()
        peer.setblocking(False)
        self.peer, self.far, self.heard = peer, peer.fileno(), self.clock()
        self.selector.register(peer, selectors.EVENT_READ, self._serve)
        self.attached()

    def _serve(self, events: int) -> None:
        if self.peer is not None and events & selectors.EVENT_WRITE:
            self._flush()
        if self.peer is None or not events & selectors.EVENT_READ:
            return
        try:
            data = self.peer.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._hear(data)
        else:
            self._leave()

    def _hear(self, data: bytes) -> None:
        if data:
            self.heard = self.clock()
        self.receive(data)

    def _leave(self) -> None:
        """Whoever commanded does no longer."""
        for fd in (0, 1):  # stdin and stdout, before anybody had attached
            with contextlib.suppress(KeyError):
                self.selector.unregister(fd)
        if self.peer is not None:
            self.selector.unregister(self.peer)
            self.peer.close()
        self.peer = self.far = None
        self.unsent.clear()

    def _flush(self) -> None:
        try:
            while self.unsent and self.far is not None:
                del self.unsent[: os.write(self.far, self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()
        if self.peer is not None:
            waits = selectors.EVENT_WRITE if self.unsent else 0
            self.selector.modify(self.peer, selectors.EVENT_READ | waits, self._serve)
        elif self.far is not None and bool(self.unsent) != (1 in self.selector.get_map()):
            if self.unsent:
                self.selector.register(1, selectors.EVENT_WRITE, lambda _: self._flush())
            else:
                self.selector.unregister(1)


def last_words(folder: str, task: int) -> str:
    """The file in which the guard of a task that has ended leaves all that a new controller would hear from it.

    Whoever it said that to may have been about to go: then nobody else would know how the task has ended.

    Args:
        folder: that of the step's logs, as it was launched.
    """
    return os.path.join(folder, f"task-{task}.end")


def leave_words(path: str, lines: list[bytes]) -> bool:
    """Write that file, whole or not at all; returns whether it could be written."""
    part = f"{path}.part"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(lines)
        os.replace(part, path)
    except OSError as error:
        _complain(f"how this task has ended cannot be left for a new controller: {path}: {error.strerror}")
        return False
    return True


def _complain(words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"ftslurm: {words}\n".encode())


def boottime() -> float:
    """Seconds since the machine was started, those in which it was suspended too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def slurm_step() -> str | None:
    """What Slurm calls the step we are in."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else None
