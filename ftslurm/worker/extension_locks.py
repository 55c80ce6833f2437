"""Locks that torch takes while it builds extensions (torch.utils.cpp_extension.load): files that exist.

A rank that is killed meanwhile leaves the file, and every further attempt would wait for it without end. So a rank
writes into its lock whose it is. Attempts of a group never overlap: a lock of an earlier one is nobody's, and is
removed. Other kinds of locks end with their process.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.errors import complain


def install() -> None:
    """Patch torch's lock."""
    from torch.utils.file_baton import FileBaton

    acquire, wait = FileBaton.try_acquire, FileBaton.wait

    def try_acquire(baton: Any) -> Any:
        remove_left(baton.lock_file_path)
        taken = acquire(baton)
        if taken:
            with suppress(OSError):
                Path(baton.lock_file_path).write_text("\n".join(owner()))
        return taken

    def waits(baton: Any) -> None:
        complain(
            f"waits for the lock {baton.lock_file_path}: another process builds this extension. If none does, it was "
            "killed: remove the file"
        )
        wait(baton)

    FileBaton.try_acquire, FileBaton.wait = try_acquire, waits


def owner() -> tuple[str, str, str]:
    """Return run, unit and attempt of this process."""
    unit, _, attempt = os.environ["FTSLURM_STEP"].partition("/")
    return os.environ["FTSLURM_RUN_DIR"], unit, attempt


def remove_left(path: str) -> None:
    """Remove a lock of an earlier attempt of this group. One rank does, though all may try."""
    with suppress(OSError, ValueError), Path(path).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run, unit, attempt = lock.read().split("\n")
        dead = (run, unit) == owner()[:2] and int(attempt) < int(owner()[2])
        if dead and os.path.samestat(os.stat(path), os.fstat(lock.fileno())):
            os.unlink(path)
            complain(f"removed the lock {path}, which attempt {attempt} of this group has left")
