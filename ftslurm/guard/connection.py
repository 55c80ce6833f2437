"""The guard's connection to the controller: its stdin and stdout, or the process that attached last.

Groups in other Slurm jobs than the controller's outlive it. The next controller reaches them through a process on their
node (attach.py), which connects to the guard's abstract Unix socket. A task does not notice that its srun has died
(measured on Slurm 22.05: no end-of-file, and its output is read and dropped). So the guard keeps the state that a new
controller needs, and sends it when one attaches.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import select
import selectors
import socket
import struct
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.errors import complain
from ftslurm.guard.file_calls import FileCalls
from ftslurm.protocol import messages
from ftslurm.security import owned_files

if TYPE_CHECKING:
    from ftslurm.guard.guard import Guard

MOST_UNSENT = 1 << 18  # bytes that wait for a slow reader; further messages are dropped
# The last message of each of these types is sent again to a new controller.
KEPT = (
    messages.LighthouseUp,
    messages.Serving,
    messages.Served,
    messages.SessionOpened,
    messages.CanSave,
    messages.NodeCheck,
    messages.Room,
    messages.Checkpointed,
    messages.Done,
    messages.Failed,
    messages.Exited,
)
STOOD_S = 5.0  # the guard looks several times a second; it stood if it has not for so long
FINISH_S = 1.0  # longest wait for a slow reader at the end; srun reports the end of the step, too
# Written to disk before they are sent: the controller that receives them may kill the step, and exit.
LEFT = (messages.Failed, messages.Exited)
_PEER = struct.Struct("iII")  # pid, uid, gid


def address(key: bytes, *words: object) -> bytes:
    """Return a name of a Unix socket, in the abstract namespace of its node: nobody knows it before it is bound.

    It is the same in a container, where the user may have another number (enroot's remap of root).

    Args:
        key: the run's.
        words: what the socket belongs to; of a task's guard the name under which its step was launched, such as
            "standby-000/4", and the index of the task.
    """
    data = "\0".join(map(str, words)).encode(errors="surrogateescape")
    return b"\0ftslurm-" + hmac.new(key, data, hashlib.sha256).hexdigest()[:40].encode()


def peer_uid(peer: socket.socket) -> int:
    """Return the uid of the peer. Each end checks it: a name can be seen once it is bound, and then be taken over."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(credentials)[1])


class TakeoverNotes:
    """The state of a task that a new controller needs, collected from the messages that pass."""

    def __init__(self) -> None:
        self.ready = self.committed = False
        self.torchft = ""
        self.store: tuple[str, int] | None = None
        self.assign: messages.Assign | None = None
        self.begin: messages.Begin | None = None
        self.kept: dict[str, bytes] = {}

    def reported(self, line: bytes) -> messages.Report | None:
        """Note a line of the worker, or about its end; return what it says."""
        report = None
        with contextlib.suppress(messages.BadMessage):  # the controller reports it
            report = messages.Report.decode(messages.parse(line))
        match report:
            case messages.Ready(torchft):
                self.ready, self.torchft = True, torchft
            case messages.StoreUp(addr, port):
                self.store = addr, port
            case messages.Progress(committed=committed) if committed:
                self.committed = True
        if isinstance(report, KEPT):
            self.kept[report.kind] = line
        return report

    def adopted(self, step: int | None) -> messages.Adopted:
        """Return the first message for a new controller; `step` is the Manager's current step."""
        assign, begin = self.assign, self.begin
        return messages.Adopted(
            ready=self.ready,
            group=assign.group if assign else None,
            attempt=assign.attempt if assign else None,
            lighthouse=assign.lighthouse if assign else None,
            store=self.store,
            begun=begin is not None,
            floor=begin.floor if begin else None,
            step=step if self.committed else None,
            torchft=self.torchft,
        )


class ControlChannel:
    """Sends lines to the controller and receives its messages."""

    def __init__(self, guard: Guard, reports: int, end: str | None) -> None:
        """Listen on stdin, and forward the worker's messages.

        Args:
            reports: the pipe into which the worker writes whole lines.
            end: the path of the end file (`end_file`); None: no other controller can attach.
        """
        self.guard, self.selector, self.end = guard, guard.selector, end
        self.lines = messages.Lines()
        self.notes = TakeoverNotes()
        self.files = FileCalls()
        self.heard = self.looked = time.monotonic()  # time of the controller's last bytes, of the last look
        self.stdin_ended = False
        self.reports: int | None = reports  # None: the worker has closed it
        self.reported = messages.Lines()
        self.listener: socket.socket | None = None
        # Descriptors of the controller's lines and of those to it; None: the attached process is gone.
        self.source: int | None = 0
        self.sink: int | None = 1
        self.unsent = bytearray()
        if end is not None:
            with contextlib.suppress(OSError):
                self.files.result(partial(os.unlink, end), None)  # of an earlier attempt of the Lighthouse
        for fd in (reports, 1):
            os.set_blocking(fd, False)
        self.selector.register(0, selectors.EVENT_READ, lambda _: self._read())
        self.selector.register(reports, selectors.EVENT_READ, lambda _: self.pass_reports())

    def listen(self, name: bytes) -> None:
        """Let new controllers attach at this name of an abstract socket; a step that is not adoptable has none."""
        if self.end is None or self.listener is not None:
            return
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(name)
        except OSError as error:
            listener.close()
            complain(f"no other controller can adopt this task: the name of its socket is taken: {error.strerror}")
            return
        listener.listen(4)
        listener.setblocking(False)
        self.listener = listener
        self.selector.register(listener, selectors.EVENT_READ, lambda _: self._accept())

    def say(self, line: bytes) -> None:
        """Send one line to the controller. A write error is ignored: the controller's silence ends the guard."""
        if isinstance(self.notes.reported(line), LEFT) and self.end is not None:
            self.files.result(partial(write_end_file, self.end, self.guard.takeover()), None)
        if self.sink is not None and len(self.unsent) < MOST_UNSENT:
            self.unsent += line
            self._flush()

    def pass_reports(self) -> None:
        """Send the lines that the worker has written."""
        while self.reports is not None:
            try:
                data = os.read(self.reports, 65536)
            except BlockingIOError:
                return
            if not data:
                self.selector.unregister(self.reports)
                self.reports = None
            for line in self.reported.feed(data):
                self.say((self._with_evidence(line) or line) + b"\n")

    def _with_evidence(self, line: bytes) -> bytes | None:
        """Return the report of a script's exception with what the guard knows of its cause; None: it is another report.

        The controller kills the step as soon as it has the report, so the guard's own last message may not reach it.
        """
        if b'"failed"' not in line:
            return None
        with contextlib.suppress(messages.BadMessage):  # the controller reports it
            failed = messages.Report.decode(messages.parse(line))
            if isinstance(failed, messages.Failed) and failed.started:
                known = {"hardware": self.guard.broken_hardware(), "oom": failed.oom or self.guard.ran_out_of_memory()}
                told = messages.Failed(**(vars(failed) | known))
                return messages.encode_report(told, failed.task).rstrip(b"\n")
        return None

    def finish(self) -> None:
        """Wait at most FINISH_S seconds until a slow reader has taken the last messages."""
        limit = time.monotonic() + FINISH_S
        while self.unsent and (left := limit - time.monotonic()) > 0 and not self.is_cut():
            for key, events in self.selector.select(left):
                key.data(events)

    def is_silent(self, limit_s: float) -> bool:
        """Return whether the controller has been silent for longer than limit_s.

        Reads pending input first: the guard, or the whole machine, may have been stopped. The time in which it stood
        (`scontrol suspend`) is no silence of the controller, which has stood as well.
        """
        now = time.monotonic()
        stood_s, self.looked = now - self.looked, now
        if stood_s > STOOD_S:
            self.heard = min(now, self.heard + stood_s)
        if now - self.heard > limit_s:
            for key, events in self.selector.select(0):
                key.data(events)
        return now - self.heard > limit_s

    def is_cut(self) -> bool:
        """Return whether both pipes are closed at their other ends: slurmstepd is gone."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(1, 0)
        seen = dict(poll.poll(0))
        stdin = seen.get(0, 0)
        ended = self.stdin_ended or (stdin & (select.POLLHUP | select.POLLERR) and not stdin & select.POLLIN)
        return bool(ended and seen.get(1, 0) & (select.POLLERR | select.POLLHUP))

    def _read(self) -> None:
        if self.source is None:
            return  # the process has left in the same turn
        try:
            data = os.read(self.source, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._hear(data)
        elif self.end is None:
            self.guard.exit_orphaned("the controller is gone")
        elif self.source == 0:
            self.stdin_ended = True
            self.selector.unregister(0)
        else:
            self._leave()

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            peer, _ = self.listener.accept()
        except OSError:
            return
        if peer_uid(peer) != os.getuid():
            self.guard.network.refusals.tell("control", f"user {peer_uid(peer)}, who tried to control this task")
            peer.close()
            return
        self._leave()
        peer.setblocking(False)
        self.sink, self.source, self.heard = os.dup(peer.fileno()), peer.detach(), time.monotonic()
        self.selector.register(self.source, selectors.EVENT_READ, lambda _: self._read())
        self.lines = messages.Lines()
        for line in self.guard.takeover():
            self.say(line)

    def _hear(self, data: bytes) -> None:
        self.heard = time.monotonic()
        for line in self.lines.feed(data):
            try:
                order = messages.Order.decode(messages.parse(line))
            except messages.BadMessage as error:
                complain(f"a bad message of the controller is ignored: {error}")
                continue
            if order is not None:
                self.guard.obey(order)

    def _leave(self) -> None:
        """Stop listening to the previous controller."""
        for fd in (self.source, self.sink):
            if fd is not None:
                with contextlib.suppress(KeyError):
                    self.selector.unregister(fd)
                if fd > 1:  # `is_cut` looks at stdin and stdout
                    os.close(fd)
        self.source = self.sink = None
        self.unsent.clear()

    def _flush(self) -> None:
        try:
            while self.unsent and self.sink is not None:
                del self.unsent[: os.write(self.sink, self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()
        if self.sink is not None and bool(self.unsent) != (self.sink in self.selector.get_map()):
            if self.unsent:
                self.selector.register(self.sink, selectors.EVENT_WRITE, lambda _: self._flush())
            else:
                self.selector.unregister(self.sink)


def end_file(folder: str, task: int) -> str:
    """Return the path of the file with the messages of a task that has ended.

    The guard writes it in case the controller that received them exits as well.

    Args:
        folder: the log folder with which the step was launched.
    """
    return os.path.join(folder, f"task-{task}.end")


def write_end_file(path: str, lines: list[bytes]) -> None:
    """Write the end file atomically."""
    try:
        owned_files.replace_file(Path(path), b"".join(lines))
    except OSError as error:
        complain(f"cannot write how this task has ended, for a new controller: {path}: {error.strerror}")


def slurm_step() -> str | None:
    """Return Slurm's id of this Slurm step, JOB.STEP; None: this is none."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else None
