"""ftslurm: fault-tolerant PyTorch training on Slurm, one step per torchft replica group.

import ftslurm
run = ftslurm.submit(["job=ddp", "groups.count=4"])
run.wait()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftslurm.api.run import Run as Run
    from ftslurm.errors import FtslurmError as FtslurmError

__version__ = "0.1.0"
__all__ = ["FtslurmError", "Run", "__version__"]
_FOUND_IN = {"FtslurmError": "ftslurm.errors", "Run": "ftslurm.api.run"}


def __getattr__(name: str) -> object:
    """Import what the package offers when it is first used: every worker imports the package too."""
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'ftslurm' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
