"""Several GPUs for tests on machines without one."""

from __future__ import annotations

import threading

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
