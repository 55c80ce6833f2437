"""Tell whether the controller still runs, by its file `alive`, which it touches with every heartbeat.

The time in that file is the file server's, or that of the controller's node, and no clock of ours: a server that is
11 s behind would make a living controller look gone. So who acts on silence watches the file *change* (`Watch`), by its
own clock, and counts from the last change that it has seen itself.
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

SILENT_S = 30.0  # a file server takes its time to tell other machines of a new time stamp
LOOK_S = 0.1  # who must be sure looks this often
_NONE = (errno.ENOENT, *owned_files.REFUSED)  # there is no such file, or none of ours


class Watch:
    """How long files have not changed, as far as we have seen. The first look at a file counts as a change of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Path, tuple[tuple[int, int], float]] = {}  # path -> what was seen, and since when

    def silent_s(self, path: Path) -> float | None:
        """Seconds for which every look at the file has shown the same, 0.0: not the one before; None: there is none.

        A file that cannot be looked at (a file server that is away) tells nothing, so it counts as changed.
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


def _stamp(path: Path) -> tuple[int, int]:
    """Which file it is, and its time. Opened first: a network file system then asks its server, not its cache."""
    fd = owned_files.open_fd(path)
    try:
        found = os.fstat(fd)
        return found.st_ino, found.st_mtime_ns
    finally:
        os.close(fd)


def age_s(path: Path, than: Path | None = None) -> float | None:
    """How long ago the file was touched, by its server's clock and ours; None: there is none, or it cannot be read.

    Args:
        than: count from when this file was touched, which lies on the same server: then no clock of ours matters.
    """
    try:
        now = time.time() if than is None else _stamp(than)[1] / 1e9
        return now - _stamp(path)[1] / 1e9
    except OSError:
        return None


def silent_s(config: Config, run: RunDir, watch: Watch | None = None) -> float | None:
    """How long the controller has not been heard; None: it is heard, or the run is older than this file.

    An old time stamp alone proves nothing (the clocks may differ): for two heartbeats the file must not change.

    Args:
        watch: of somebody who asks again and again, and does not want to wait here until it is sure.
    """
    limit, sure_s = max(SILENT_S, 3 * config.health.heartbeat_s), 2 * config.health.heartbeat_s
    asks_again, watch = watch is not None, watch or Watch()
    same_s = watch.silent_s(run.alive)
    while same_s is not None and (age := max(age_s(run.alive) or 0.0, same_s)) > limit:
        if same_s >= sure_s:
            return age
        if asks_again:
            return None
        time.sleep(LOOK_S)
        same_s = watch.silent_s(run.alive) or None  # 0.0: it was touched
    return None


def moment(config: Config, run: RunDir) -> float:
    """Until when is known how the run stands, in unix time: now, or when a controller that is silent was last heard."""
    now, age = time.time(), age_s(run.alive)
    return now if age is None or age <= 3 * config.health.heartbeat_s else now - age


@contextmanager
def kept(path: Path, every_s: float, ours: Callable[[], bool]) -> Iterator[None]:
    """Touch a file while something takes long that keeps us from our loop, as long as it is ours to touch."""
    done = threading.Event()

    def touch() -> None:
        while ours():
            with suppress(OSError):
                path.touch(mode=0o600)
            if done.wait(every_s):
                return

    thread = threading.Thread(target=touch, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
