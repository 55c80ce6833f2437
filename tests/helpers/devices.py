"""Several GPUs for tests on machines without one."""

from __future__ import annotations

import threading
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import torch


class Devices:
    """GPUs of which each thread has a current one of its own, at first number 0, behind torch.accelerator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of = threading.local()
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_device_index", self.current)
        monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: setattr(self.of, "index", index))

    def current(self) -> int:
        """Return the current device of this thread."""
        return int(getattr(self.of, "index", 0))


QUERIES = {"current_accelerator", "device_count", "is_available", "is_initialized", "device_memory_used"}  # no context


class Touched(list[str]):
    """The functions of torch.accelerator and torch.cuda that were called and need a GPU, of which there seem to be two.

    torch initializes CUDA in each of them, on GPU 0 unless another one is current.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for module in (torch.accelerator, torch.cuda):
            for name, function in vars(module).items():
                if isinstance(function, FunctionType) and not name.startswith("_") and name not in QUERIES:
                    monkeypatch.setattr(module, name, partial(self._touch, f"{module.__name__}.{name}"))
            monkeypatch.setattr(module, "is_available", lambda: True)
            monkeypatch.setattr(module, "device_count", lambda: 2)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "_lazy_init", partial(self._touch, "torch.cuda._lazy_init"))

    def _touch(self, name: str, *_: Any, **__: Any) -> Any:
        self.append(name)
        raise RuntimeError(f"{name} makes a context on a GPU")
