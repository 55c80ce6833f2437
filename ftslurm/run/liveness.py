"""Detect a silent controller by its file RUN/alive, which it touches with every heartbeat.

The file's time stamp comes from the clock of the file server or of the controller's node. If that clock is 11 s slow, a
live controller looks dead. A process that acts on silence therefore observes when the file changes (`Watch`) and
measures the time since the last change with its own clock.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files
from ftslurm.security.terminal import visible

SILENT_S = 30.0  # file servers propagate a new time stamp to other machines with a delay
_ROOM = 2048  # bytes of `alive`
POLL_S = 0.1  # between two checks of a caller that waits for certainty
_NONE = (errno.ENOENT, *owned_files.REFUSED)  # there is no such file, or it belongs to another user


class Watch:
    """Measures for how long files have not changed. The first check of a file counts as a change."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Path, tuple[tuple[int, int], float]] = {}  # path -> the last stamp, and since when

    def silent_s(self, path: Path) -> float | None:
        """Return for how long the file has not changed; 0.0: it has changed since the last check; None: no such file.

        A file that cannot be read for now (its file server is down) counts as changed.
        """
        now = self._clock()
        try:
            stamp = _stamp(path)
        except OSError as error:
            if error.errno in _NONE:
                self._seen.pop(path, None)
                return None
            stamp = (-1, -1)
        known = self._seen.get(path)
        if known is None or known[0] != stamp or stamp == (-1, -1):
            self._seen[path] = stamp, now
        return now - self._seen[path][1]


def touch(path: Path, complaint: str = "") -> None:
    """Touch the file, with what `status` is to say of a journal that cannot be written.

    The text has its place in the file from the start: a full disk takes what replaces the bytes of a file.

    Raises:
        OSError: it can be neither made nor touched.
    """
    number, text = owned_files.open_fd(path, os.O_RDWR | os.O_CREAT), complaint.encode(errors="replace")
    try:
        os.utime(number)
        if os.pread(number, _ROOM, 0) != (text := text[:_ROOM].ljust(_ROOM)):
            os.pwrite(number, text, 0)
    finally:
        os.close(number)


def complaint(run: RunDir) -> str | None:
    """Return what the controller has last said of a journal that it cannot write; None: nothing."""
    with suppress(OSError):
        return visible(owned_files.read_text(run.alive).strip()) or None
    return None


def _stamp(path: Path) -> tuple[int, int]:
    """Return a file's inode and time. Opens it, so that a network file system asks its server and not its cache."""
    fd = owned_files.open_fd(path)
    try:
        found = os.fstat(fd)
        return found.st_ino, found.st_mtime_ns
    finally:
        os.close(fd)


def age_s(path: Path, than: Path | None = None) -> float | None:
    """Return how long ago a file was touched; None: there is none, or it cannot be read.

    Args:
        than: a file on the same server; the age is the difference of the two time stamps, so the local clock does not
            matter. None: measure against the local clock.
    """
    try:
        now = time.time() if than is None else _stamp(than)[1] / 1e9
        return now - _stamp(path)[1] / 1e9
    except OSError:
        return None


def stays_silent(path: Path, for_s: float, watch: Watch, wait: bool) -> bool:
    """Return whether the file does not change for so long: an old time stamp alone may mean that the clocks differ.

    Args:
        wait: wait until that is certain; false: the caller asks again.
    """
    same_s = watch.silent_s(path)
    while same_s is not None and same_s < for_s:
        if not wait:
            return False
        time.sleep(POLL_S)
        if (same_s := watch.silent_s(path)) == 0.0:
            return False
    return True


def moment(config: Config, run: RunDir) -> float:
    """Return up to which time the status is known, in unix seconds: now, or when a silent controller was last heard."""
    now, age = time.time(), age_s(run.alive)
    return now if age is None or age <= 3 * config.heartbeat_s else now - age


def lives(pid: int) -> bool:
    """Return whether a process of this machine lives; -PID: one of the process group with that leader (kill(2))."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def kept(path: Path, every_s: float, ours: Callable[[], bool]) -> Iterator[None]:
    """Touch a file regularly during a long operation, as long as `ours` returns true."""
    done = threading.Event()

    def keep() -> None:
        while ours():
            with suppress(OSError):
                touch(path)
            if done.wait(every_s):
                return

    thread = threading.Thread(target=keep, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
