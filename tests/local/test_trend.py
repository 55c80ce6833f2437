"""What a process keeps with every round is found by the trend of its readings; noise that comes and goes is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import trend

ROUNDS = 60
CHILD = """
import os, sys, threading, random
kind, kept, rng = sys.argv[1], [], random.Random(1)
stop = threading.Event()
for n, _ in enumerate(sys.stdin):
    if kind == "thread":
        kept.append(threading.Thread(target=stop.wait, daemon=True)); kept[-1].start()
    elif kind == "descriptor":
        kept.append(open(os.devnull))
    elif kind == "memory":
        kept.append(bytearray(os.urandom(1 << 16) * 40))
    elif kind == "rarely" and n % 4 == 0:  # still 25 in 100
        kept.append(open(os.devnull))
    elif kind == "at first" and n < 8:  # what later rounds use again
        kept.append(open(os.devnull)); kept.append(bytearray(os.urandom(1 << 16) * 40))
    elif kind == "noise":
        for one in kept: one.close()
        kept = [open(os.devnull) for _ in range(rng.randrange(6))]
    elif kind == "at once" and n == 30:  # one step up is no trend
        kept += [open(os.devnull) for _ in range(4)]
    print(n, flush=True)
"""


@pytest.fixture
def readings(request: pytest.FixtureRequest) -> Iterator[list[dict[str, float]]]:
    command = [sys.executable, "-c", CHILD, request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as child:
        assert child.stdin
        assert child.stdout
        found = []
        for _ in range(ROUNDS):
            child.stdin.write("\n")
            child.stdout.readline()
            found.append(trend.reading(child.pid, {child.pid: 500}))
        yield found
        child.kill()


@pytest.mark.parametrize(
    ("readings", "grows"),
    [("thread", "threads"), ("descriptor", "descriptors"), ("memory", "memory MB"), ("rarely", "descriptors")],
    indirect=["readings"],
)
def test_what_grows_is_found_and_named(readings: list[dict[str, float]], grows: str) -> None:
    with pytest.raises(AssertionError, match=f"^{grows} grow: "):
        trend.judged(readings)


@pytest.mark.parametrize("readings", ["nothing", "at first", "noise", "at once"], indirect=True)
def test_what_does_not_grow_passes_and_is_told_with_its_bound(readings: list[dict[str, float]]) -> None:
    assert trend.judged(readings).count("at most") == len(trend.BOUNDS)


def test_memory_of_a_gpu_that_grows_is_found_and_a_few_readings_are_no_trend() -> None:
    grows = [{"GPU MB": 900.0 + n} for n in range(ROUNDS)]
    with pytest.raises(AssertionError, match=r"GPU MB 900 to 959, by the trend \+100.0 in 100"):
        trend.judged(grows)
    with pytest.raises(ValueError, match="no trend"):
        trend.judged(grows[: trend.LEAST - 1])
    with pytest.raises(AssertionError, match="nothing"):
        trend.judged([{}] * ROUNDS)
