"""Takes the stacks of a worker into a file of their own, when a user asks for them (`ftslurm stacks`).

The file has what faulthandler writes (stacks.py) and, where py-spy is installed, what `py-spy dump` sees from outside.
That needs no help from the worker, so it also sees one that is stopped or holds the GIL in C.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

from ftslurm.guard import processes, stacks
from ftslurm.protocol.position import Position
from ftslurm.security import owned_files

SPY_S = 10.0  # longest time that py-spy may take


def take(pid: int, position: Position, log: str, rank: int) -> str:
    """Write the stacks of a worker into a new file beside its log; return its name. Takes a second, and py-spy's time.

    Args:
        log: the rank's log, which gets what faulthandler writes, too.

    Raises:
        OSError: the file cannot be made or written.
    """
    size, stopped = os.path.getsize(log) if os.path.exists(log) else 0, processes.state(pid) == "T"
    stacks.dump(pid, position, log, f"rank {rank}", "ftslurm stacks")
    path, number = owned_files.open_next(os.path.dirname(log), f"stacks-rank-{rank}-{{}}.txt")
    with os.fdopen(number, "wb", 0) as file:
        with contextlib.suppress(OSError), open(log, "rb") as source:
            source.seek(size)
            file.write(source.read())
        if (spy := find_spy()) is not None:
            file.write(b"\nftslurm: the same from outside, by py-spy:\n")
            # It cannot pause a process that is stopped already (py-spy 0.4).
            command = [spy, "dump", *(["--nonblocking"] if stopped else []), "--pid", str(pid)]
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=SPY_S, check=False)
            except subprocess.TimeoutExpired:
                file.write(f"ftslurm: py-spy was killed after {SPY_S:g} s\n".encode())
    return os.path.basename(path)


def find_spy() -> str | None:
    """Return the path of py-spy: that of this interpreter's environment, else one on the PATH; None: there is none."""
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    return shutil.which("py-spy", path=os.pathsep.join(folders))
