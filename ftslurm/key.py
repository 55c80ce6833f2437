"""The run's key: what proves that a process is of this run (ftslurm/worker/handshake.py).

Made by the first controller, kept in the run directory (mode 0600) for its successors, and handed to every step over
the standard input of its srun. Nowhere else: no command line, no environment, no journal has it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import ConfigError

SIZE = 32  # bytes


def load_or_make(path: Path) -> bytes:
    """The key of a run, made if it has none yet.

    Raises:
        ConfigError: the file is not ours alone, or is damaged.
        OSError: it can neither be read nor made.
    """
    if not os.path.lexists(path):
        _make(path)
    return _read(path)


def _make(path: Path) -> None:
    """Whole or not at all; there is one controller at a time."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(FileNotFoundError):
        part.unlink()  # of a process that was killed
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        os.fsync(fd)
    part.rename(path)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
        data = file.read(SIZE + 1) if ours else b""
    if not ours:
        raise ConfigError(f"{path} is not a file of yours that only you can read and write: this run cannot be trusted")
    if len(data) != SIZE:
        raise ConfigError(f"{path} is damaged: the run's processes cannot prove to each other who they are")
    return data
