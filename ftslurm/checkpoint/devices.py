"""Keeps a thread on the GPU of its creator: each thread has a current device of its own, which at first is GPU 0.

In a thread that is left there NCCL would connect through GPU 0, the child of a process group would use it, and DCP
would wait for its stream. Each rank of a node would hold half a GB of GPU 0 for its context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


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
