"""Takes the stacks of a worker into a file of their own, when a user asks for them (`ftslurm stacks`).

The file has what faulthandler writes (stacks.py) and, where py-spy is installed, what `py-spy dump` sees from outside.
That needs no help from the worker, so it also sees one that is stopped or holds the GIL in C. py-spy runs beside the
guard, which goes on serving the channel meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

from ftslurm.guard import processes, stacks
from ftslurm.protocol.position import Position
from ftslurm.security import owned_files

SPY_S = 10.0  # longest time that py-spy may take


class StackFiles:
    """The files that are being written."""

    def __init__(self) -> None:
        self._taken: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # those that are complete

    def take(self, pid: int, position: Position, log: str, rank: int, by: str, taken: Callable[[str], None]) -> None:
        """Write the stacks of a worker into a new file beside its log. Takes at most a second, py-spy not counted.

        Args:
            log: the rank's log, which gets what faulthandler writes, too.
            by: the requester, for the heading.
            taken: called with the name of the file when it is complete.
        """
        size, stopped = os.path.getsize(log) if os.path.exists(log) else 0, processes.state(pid) == "T"
        stacks.dump(pid, position, log, f"rank {rank}", by)
        path, file = owned_files.open_next(os.path.dirname(log), f"stacks-rank-{rank}-{{}}.txt")
        name = os.path.basename(path)
        with contextlib.suppress(OSError), open(log, "rb") as source:
            source.seek(size)
            os.write(file, source.read())
        spy = find_spy()
        if spy is None:
            os.close(file)
            taken(name)
            return
        os.write(file, b"\nftslurm: the same from outside, by py-spy:\n")
        # It cannot pause a process that is stopped already (py-spy 0.4).
        command = [spy, "dump", *(["--nonblocking"] if stopped else []), "--pid", str(pid)]

        def wait() -> None:
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=SPY_S, check=False)
            except subprocess.TimeoutExpired:
                os.write(file, f"ftslurm: py-spy was killed after {SPY_S:g} s\n".encode())
            os.close(file)
            self._taken.put(partial(taken, name))

        threading.Thread(target=wait, daemon=True).start()

    def update(self) -> None:
        """Say which files are complete."""
        while not self._taken.empty():
            self._taken.get()()


def find_spy() -> str | None:
    """Return the path of py-spy: that of this interpreter's environment, else one on the PATH; None: there is none."""
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    return shutil.which("py-spy", path=os.pathsep.join(folders))
