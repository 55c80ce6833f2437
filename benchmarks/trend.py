"""Does something grow? The trend of many readings of a process, not the difference of two. Pure but for `reading`."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

# How much more there may be after 100 heals by the trend. What stays behind once a heal would be 100.
BOUNDS: Mapping[str, float] = {"threads": 3, "descriptors": 5, "GPU MB": 64, "memory MB": 150}
WARM_UP = 0.2  # of the readings: the first ones allocate what the later ones use
LEAST = 20  # readings, below which there is no trend


def reading(pid: int, gpu_mb: Mapping[int, int]) -> dict[str, float]:
    """Return what a process holds now; of the GPU what the driver has told."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {"threads": _field(status, "Threads"), "memory MB": _field(status, "VmRSS") / 1024}
    found["descriptors"] = float(len([*Path(f"/proc/{pid}/fd").iterdir()]))
    return found | ({"GPU MB": float(gpu_mb[pid])} if pid in gpu_mb else {})


def growth(values: Sequence[float], each: int = 100) -> float:
    """Return by how much values grow over so many of them: the median of all slopes (Theil-Sen), which outliers and
    a noise that comes and goes do not move.

    Raises:
        ValueError: there are too few.
    """
    if len(values) < LEAST:
        raise ValueError(f"{len(values)} readings are no trend; it takes {LEAST}")
    later = [*enumerate(values)][int(WARM_UP * len(values)) :]
    return each * statistics.median((b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(later, 2))


def judged(readings: Sequence[Mapping[str, float]], bounds: Mapping[str, float] = BOUNDS) -> str:
    """Return what the readings of a process show.

    Raises:
        AssertionError: something grows by more than its bound.
    """
    said, grown = [], []
    for name, most in bounds.items():
        if all(name in one for one in readings):
            values = [one[name] for one in readings]
            by = growth(values)
            said.append(f"{name} {values[0]:.0f} to {values[-1]:.0f}, by the trend {by:+.1f} in 100 (at most {most:g})")
            grown += [name] * (by > most)
    assert said, f"nothing was read of {', '.join(bounds)}"
    assert not grown, f"{', '.join(grown)} grow: {'; '.join(said)}"
    return "\n".join(said)


def _field(status: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    assert found, status
    return float(found[1])
