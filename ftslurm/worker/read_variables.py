"""Warns the user of a script that sets variables too late: torch has read them when the worker imported it.

Rank 0 needs torch before the script begins (the group's store), and a standby has imported it long before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ftslurm.words import listed

# Read in C or C++, when a library is loaded.
_IN_C = re.compile(r"(OMP|MKL|KMP|GOMP|OPENBLAS)_\w+|TORCH_(DISTRIBUTED_DEBUG|SHOW_CPP_STACKTRACES|CPP_LOG_LEVEL)")
_BY_TORCHFT = {"TORCH_FR_DUMP_TEMP_FILE"}  # its Manager sets them
_read = set[str]()


@contextmanager
def noted() -> Iterator[None]:
    """Note the variables that Python code reads meanwhile."""
    kind = type(os.environ)
    original = kind.__getitem__

    def read(environ: os._Environ[str], name: str) -> str:
        _read.add(name)
        return original(environ, name)

    kind.__getitem__ = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.__getitem__ = original  # type: ignore[method-assign]


def too_late(before: Mapping[str, str]) -> str:
    """Return what to tell about the variables that were set since, and had been read; empty: there is none."""
    names = [name for name, value in sorted(os.environ.items()) if before.get(name) != value]
    late = [name for name in names if _IN_C.fullmatch(name) or (name in _read - _BY_TORCHFT and "TORCH" in name)]
    if not late:
        return ""
    return (
        f"the script sets {listed(late)} too late: torch is imported before the script begins, and has read the "
        f"variables then. Set {listed([f'job.env.{name}' for name in late])} instead"
    )
