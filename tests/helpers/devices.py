"""Several GPUs for tests on machines without one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import torch


class Devices:
    """GPUs of which each thread has a current one of its own, at first number 0, behind torch.accelerator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of = threading.local()
        self.contexts = set[int]()  # of this process
        self.synchronized = list[int]()
        self.queued = list[tuple[int, Callable[[], object]]]()  # GPU, and what it does when it is synchronized
        self.now = 0.0  # by the GPUs' clocks, in seconds
        self.odd: Callable[[], bool] = lambda: False  # whether a call of CUDA fails
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_device_index", self.current)
        monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: setattr(self.of, "index", index))
        monkeypatch.setattr(torch.accelerator, "synchronize", self._synchronize)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        monkeypatch.setattr(torch.cuda, "current_stream", self._index)
        monkeypatch.setattr(torch.cuda, "Event", partial(Event, self))
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index in self.contexts, raising=False)

    def current(self) -> int:
        """Return the current device of this thread."""
        return int(getattr(self.of, "index", 0))

    def use(self, device: Any) -> int:
        """Use a device as CUDA does, which makes a context there; return its index."""
        if self.odd():
            raise RuntimeError("CUDA error: unspecified launch failure")
        index = self._index(device)
        self.contexts.add(index)
        return index

    def _index(self, device: Any = None) -> int:
        if isinstance(device, int):
            return device
        return self.current() if device is None or device.index is None else int(device.index)

    def _synchronize(self, device: Any = None) -> None:
        index = self.use(device)
        self.synchronized.append(index)
        for on, work in [one for one in reversed(self.queued) if one[0] == index]:
            self.queued.remove((on, work))
            work()


class Event:
    """torch.cuda.Event on one of these GPUs."""

    def __init__(self, gpus: Devices, **_: bool) -> None:
        self.gpus = gpus
        self.on, self.at = -1, 0.0

    def record(self, stream: int | None = None) -> None:
        self.on, self.at = self.gpus.use(stream), self.gpus.now

    def query(self) -> bool:
        return self.gpus.use(self.on) >= 0

    def elapsed_time(self, end: Event) -> float:
        if self.gpus.use(self.on) != end.on:
            raise ValueError("Both events must be recorded on the same device")
        return (end.at - self.at) * 1e3


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

    def _touch(self, name: str, *_: Any, **__: Any) -> Any:
        self.append(name)
        raise RuntimeError(f"{name} makes a context on a GPU")
