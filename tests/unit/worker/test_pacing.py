"""A standby's imports give way to those who want its CPUs, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ftslurm.worker import pacing

SLOW = """
import sys, time
from ftslurm.worker import pacing

def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

with pacing.paced():
    began, cpu = time.monotonic(), time.process_time()
    for number in range(10):
        spin(0.05)
        try:
            __import__(f"no_such_module_{number}")
        except ImportError:
            pass
    print((time.process_time() - cpu) / (time.monotonic() - began))
"""


@pytest.mark.parametrize(
    ("ran", "waited", "pause"),
    [
        (0.1, 0.0, 0.0),
        (0.1, 0.004, 0.0),
        (0.1, 0.006, 0.3),
        (0.1, None, 0.3),  # a kernel that does not tell: as if others wanted the CPUs
        (5.0, 5.0, pacing.LONGEST_S),
    ],
)
def test_the_pause_depends_on_the_wait_for_a_cpu(ran: float, waited: float | None, pause: float) -> None:
    assert pacing.pause_s(ran, waited) == pytest.approx(pause)


def share_beside(others: int) -> float:
    """Return the share of one CPU that imports take beside so many busy processes on the same CPU."""
    cpu = min(os.sched_getaffinity(0))
    bind = ["taskset", "-c", str(cpu)]
    busy = [subprocess.Popen([*bind, sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        time.sleep(0.2 if busy else 0.0)
        done = subprocess.run([*bind, sys.executable, "-c", SLOW], capture_output=True, text=True, check=True)
        return float(done.stdout)
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.nightly
def test_imports_on_a_wanted_cpu_take_a_small_share_of_it() -> None:
    assert share_beside(1) < 0.35  # half of it without pauses


def test_the_finder_leaves_no_trace() -> None:
    before = list(sys.meta_path)
    with pacing.paced():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before
