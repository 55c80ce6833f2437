"""Imports the modules that the first step of a script needs, before a standby reports ready.

torch imports many of its modules at their first use: the first optimizer imports torch._dynamo and with it sympy, some
800 modules in all. A step beyond that would save 0.05 s more (torch 2.13), and could change what the script can do: a
backward pass starts autograd's threads, and a step of Adam initializes CUDA before a standby knows its GPUs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from ftslurm.errors import complain

LATE = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torchft.local_sgd",
    "ftslurm.checkpoint.checkpointer",
    "ftslurm.checkpoint.snapshot",
    "torch.profiler._cupti_monitor",  # for a step of an optimizer (torch 2.13)
    "torch.utils.serialization.config",  # for a heal
)


def warm(further: Iterable[str]) -> None:
    """Import the modules of LATE and `further` (standby.imports).

    Raises:
        RuntimeError: a module of standby.imports cannot be imported.
    """
    for name in LATE:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # another version of torch
        except Exception as error:  # an optional part: the first step imports it
            complain(f"standby: could not import {name} early: {error!r}")
    for name in further:
        initialized = _cuda_is_initialized()
        try:
            importlib.import_module(name)
        except BaseException as error:
            raise RuntimeError(
                f"standby.imports: {name!r} cannot be imported by {sys.executable}: {type(error).__name__}: {error}"
            ) from error
        if _cuda_is_initialized() > initialized:
            complain(f"standby: the import of {name} has initialized CUDA: remove it from standby.imports")


def _cuda_is_initialized() -> bool:
    """Return whether this process has a CUDA context. A worker without torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
