"""Which GPUs this process uses.

Each thread has a current device of its own, at first GPU 0, so a thread of ours is kept on the GPU of its creator. In a
thread that is left there NCCL would connect through GPU 0, the child of a process group would use it, and DCP
would wait for its stream. Each rank of a node would hold half a GB of GPU 0 for its context.

So does a script that does not select its GPU, which is seen by the contexts of its process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

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

    def there(*args: object) -> T:
        with suppress(RuntimeError):  # the GPU is broken, which is for `function` to find
            torch.accelerator.set_device_index(device)
        return function(*args)

    return there


def synchronize(tensors: Iterable[Any]) -> None:
    """Wait until the GPUs of these tensors have done what they were asked for, on whatever stream."""
    import torch

    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        torch.accelerator.synchronize(device)


def misplaced() -> str:
    """Return what to tell the user if this worker has a CUDA context on the GPU of another local rank, else "".

    A worker's GPU is that of its local rank, where there is one for each.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    if str(gpus) != os.environ["LOCAL_WORLD_SIZE"]:
        return ""
    others = (gpu for gpu in range(gpus) if str(gpu) != os.environ["LOCAL_RANK"])
    return next(map(MISPLACED.format, filter(torch._C._cuda_hasPrimaryContext, others)), "")
