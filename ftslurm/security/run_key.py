"""The run's key, which proves that a process belongs to the run (ftslurm/security/handshake.py).

The first controller makes it and keeps it in the run directory (mode 0600) for its successors. Each step gets it over
the standard input of its srun. It is never in a command line, an environment or the journal.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ftslurm.errors import Distrusted
from ftslurm.security import owned_files

SIZE = 32  # bytes


def load_or_make(path: Path) -> bytes:
    """Read the key of a run, or make it if it has none yet.

    Raises:
        Distrusted: other users can read or write the file, or it is damaged.
        OSError: the key cannot be written.
    """
    if not os.path.lexists(path):
        owned_files.replace_file(path, secrets.token_bytes(SIZE), durable=True, mode=0o600)
    try:
        with owned_files.open_own(path) as file:
            others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            key = file.read(SIZE + 1)
    except OSError as error:
        raise Distrusted(f"{path}, by which this run's processes know each other: {error.strerror}") from error
    if others:
        raise Distrusted(f"{path}, by which this run's processes know each other, can be read by other users")
    if len(key) != SIZE:
        raise Distrusted(f"{path}, by which this run's processes know each other, is damaged")
    return key
