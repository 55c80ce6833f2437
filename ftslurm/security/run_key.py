"""The run's key: what proves that a process is of this run (ftslurm/security/handshake.py).

Made by the first controller, kept in the run directory (mode 0600) for its successors, and handed to every step over
the standard input of its srun. Nowhere else: no command line, no environment, no journal has it.
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
    """The key of a run, made if it has none yet.

    Raises:
        Distrusted: the file is not ours alone, or is damaged.
        OSError: it can neither be read nor made.
    """
    if not os.path.lexists(path):
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        owned_files.write_file(part, secrets.token_bytes(SIZE))
        part.rename(path)  # whole or not at all; there is one controller at a time
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
