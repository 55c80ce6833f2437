"""Imports the modules that the first step of a script needs, before a standby reports ready.

torch imports many of its modules at their first use: the first optimizer imports torch._dynamo and with it sympy, some
800 modules in all. The warm-up must not change the script's results (it restores the random generators) or what the
script can do: it runs no backward pass, because that starts autograd's threads, and then a script that forks cannot use
autograd in its children. Nor may it initialize CUDA: a standby does not know its GPUs yet. So it steps with SGD alone,
since the step of Adam asks for the GPU's current stream (torch 2.13), and Adam imports nothing more.
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
    "torch.utils.serialization.config",  # for a heal
)


def warm(further: Iterable[str]) -> None:
    """Import the modules of LATE and `further` (standby.imports), and take one tiny step.

    Raises:
        RuntimeError: a module of standby.imports cannot be imported.
    """
    for name in LATE:
        try:
            importlib.import_module(name)
        except Exception as error:  # another version of torch, or an optional part: the first step imports it
            complain(f"standby: could not import {name} early: {error!r}")
    try:
        _take_a_step()
    except Exception as error:
        complain(f"standby: could not take a step to warm up: {error!r}")
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


def _take_a_step() -> None:
    import torch

    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Linear(2, 2)
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        stepper.zero_grad()
        model(torch.zeros(1, 2))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        stepper.step()
    if _cuda_is_initialized():
        raise RuntimeError("CUDA has been initialized")


def _cuda_is_initialized() -> bool:
    """Return whether this process has a CUDA context. A worker without torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
