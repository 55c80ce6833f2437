"""Which GPUs this process uses.

Each thread has a current device of its own, at first GPU 0, so a thread of ours is kept on the GPU of its creator. In a
thread that is left there NCCL would connect through GPU 0, the child of a process group would use it, and DCP
would wait for its stream. Each rank of a node would hold half a GB of GPU 0 for its context.

So does a script that does not select its GPU, which is seen by the contexts of its process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
MISPLACED = (
    "a worker uses GPU {}, which is another local rank's: its CUDA context takes about half a GB there. Call "
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else of the script uses CUDA"
)


def on_this_device(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that does the same on this thread's device, for another thread."""
    import torch

    if not torch.accelerator.is_available():
        return function
    device = torch.accelerator.current_device_index()

    @functools.wraps(function)
    def there(*args: object) -> T:
        with suppress(RuntimeError):  # the GPU is broken, which is for `function` to find
            torch.accelerator.set_device_index(device)
        return function(*args)

    return there


def synchronize(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the GPUs of these tensors have done what they were asked for, on whatever stream."""
    import torch

    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        torch.accelerator.synchronize(device)


def misplaced() -> str:
    """Return what to tell the user if this worker has a CUDA context on the GPU of another local rank, else "".

    A worker's GPU is that of its local rank, where there is one for each.
    """
    import torch

    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)  # a build for CPUs has none
    ranks, own = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    if has_context is None or not torch.cuda.is_initialized() or torch.cuda.device_count() != ranks:
        return ""
    others = [gpu for gpu in range(ranks) if gpu != own and has_context(gpu)]
    return MISPLACED.format(others[0]) if others else ""
