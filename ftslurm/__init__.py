"""ftslurm: fault-tolerant PyTorch training on Slurm, one step per torchft replica group.

import ftslurm
run = ftslurm.submit(["job=ddp", "groups.count=4"])
run.wait()
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # of typing, which `python -m ftslurm` would look for in the working directory (__main__.py)
if TYPE_CHECKING:
    from ftslurm.api.run import Run as Run
    from ftslurm.api.start import find as find
    from ftslurm.api.start import runs as runs
    from ftslurm.api.start import submit as submit
    from ftslurm.errors import FtslurmError as FtslurmError
    from ftslurm.observer.callbacks import RunCallback as RunCallback

__version__ = "0.2.0"
__all__ = ["FtslurmError", "Run", "RunCallback", "__version__", "find", "runs", "submit"]
_FOUND_IN = {
    "FtslurmError": "ftslurm.errors",
    "Run": "ftslurm.api.run",
    "RunCallback": "ftslurm.observer.callbacks",
    "find": "ftslurm.api.start",
    "runs": "ftslurm.api.start",
    "submit": "ftslurm.api.start",
}


def __getattr__(name: str) -> object:
    """Import what the package offers when it is first used: every worker imports the package too."""
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'ftslurm' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
