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
    from ftslurm.api.start import all_runs as runs
    from ftslurm.api.start import find_run as find
    from ftslurm.api.start import submit_run as submit
    from ftslurm.errors import FtslurmError as FtslurmError
    from ftslurm.observer.callbacks import RunCallback as RunCallback

__version__ = "0.2.0"
__all__ = ["FtslurmError", "Run", "RunCallback", "__version__", "find", "runs", "submit"]
_FOUND_IN = {
    "FtslurmError": ("ftslurm.errors", "FtslurmError"),
    "Run": ("ftslurm.api.run", "Run"),
    "RunCallback": ("ftslurm.observer.callbacks", "RunCallback"),
    "find": ("ftslurm.api.start", "find_run"),
    "runs": ("ftslurm.api.start", "all_runs"),
    "submit": ("ftslurm.api.start", "submit_run"),
}


def __getattr__(name: str) -> object:
    """Import what the package offers when it is first used: every worker imports the package too."""
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'ftslurm' has no attribute {name!r}")
    module, inside = _FOUND_IN[name]
    return getattr(import_module(module), inside)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
