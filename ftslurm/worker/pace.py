"""Measures how fast a group is by itself: all end a step together, so that a slow one makes the others wait."""

from __future__ import annotations

import sys
from collections import deque
from statistics import median
from typing import Any

from ftslurm.worker.onlooker import Onlooker, quietly

STEPS = 50  # so many are one measurement


class Pace(Onlooker):
    """The times of one Manager's last steps.

    A step begins after the commit before it. What the worker does alone ends at its first allreduce, in which it waits
    for the others; its waits for a quorum before that (use_async_quorum=False, num_participants) do not count.
    CUDA is asynchronous, so the clock of the GPU that holds the reduced tensor is read as well. That need not be the
    current device, on which reading the clock would create a context.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: deque[tuple[float, float]] = deque(maxlen=STEPS)  # own time, whole time
        self._began: float | None = None
        self._device: Any = None  # of the tensor that the last step reduced first; None: it has reduced none
        self._gpu_began: Any = None
        self._gpu_reduced: Any = None
        self._own_s: float | None = None  # of the present step; None: it has not come to its allreduce
        self._waited_s = 0.0

    @quietly
    def waited(self, seconds: float) -> None:
        """The script has waited for its quorum."""
        self._waited_s += seconds

    @quietly
    def reduces(self, now: float, tensor: Any) -> None:
        """The script calls an allreduce of a tensor."""
        if self._own_s is None and self._began is not None:
            self._own_s = now - self._began - self._waited_s
            before, self._device = self._device, getattr(tensor, "device", None)
            self._gpu_reduced = _gpu_time(self._device) if self._device == before else None

    @quietly
    def ends(self, now: float, committed: bool) -> None:
        """The step is over."""
        try:
            if committed and self._began is not None and self._own_s is not None:
                self._steps.append((max(self._own_s, self._gpu_s() - self._waited_s), now - self._began))
        finally:  # the next one begins even if this one cannot be measured
            self._began, self._own_s, self._waited_s = now, None, 0.0
            self._gpu_began = self._gpu_reduced = None
            self._gpu_began = _gpu_time(self._device)

    def medians(self) -> tuple[float | None, float | None]:
        """Return the medians of the own time and the whole time of the last STEPS steps in seconds; None: too few.

        Evaluations, checkpoints, heals and slow first steps are few among them, so that a median leaves them out.
        """
        if len(self._steps) < STEPS:
            return None, None
        own, whole = zip(*self._steps, strict=True)
        return round(median(own), 6), round(median(whole), 6)

    def _gpu_s(self) -> float:
        """Return the own time by the GPU's clock; 0: there is none, or it is not that far."""
        began, reduced = self._gpu_began, self._gpu_reduced
        if began is None or reduced is None or not reduced.query():
            return 0.0
        return float(began.elapsed_time(reduced)) / 1000


def _gpu_time(device: Any) -> Any:
    """Return an event that gets the time when a GPU has done what it was ordered so far; None: it is no GPU."""
    if device is None or device.type != "cuda":
        return None
    cuda = sys.modules["torch"].cuda
    event = cuda.Event(enable_timing=True)
    event.record(cuda.current_stream(device))
    return event
