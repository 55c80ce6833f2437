"""Which Lighthouse timing lets survivors go on soon without throwing out the healthy? What the defaults were chosen by.

    python benchmarks/lighthouse_timing.py

Prints for each heartbeat time-out how long survivors of a `kill -9` stall, and how often the quorum changes without
cause while twice as many busy loops as there are cores run beside the training (a healthy group that misses its
heartbeats is dropped and comes back: two changes). 4 groups on one machine, torchft's own Lighthouse.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import Backend

GROUPS = 4


def stall(backend: Backend, timing: list[str]) -> float:
    """Return the seconds between two commits of the survivors around a kill."""
    run = backend.start(f"groups.count={GROUPS}", "restart=never", *timing, args={"steps": 60, "step-time": 0.05})
    run.until(lambda: all(len(run.steps(g)) >= 10 for g in range(GROUPS)), "training")
    at = run.kill(group=1, number=signal.SIGKILL)
    run.finish().check_deaths()
    gaps = []
    for group in (0, 2, 3):
        times = [s["time"] for s in run.steps(group)]
        gaps.append(max(b - a for a, b in itertools.pairwise(times) if b > at))
    return max(gaps)


def changes_under_load(backend: Backend, timing: list[str], steps: int) -> tuple[int, int]:
    """Return (quorum changes after the start, steps) while the machine is overloaded and nothing fails."""
    spin = "while True: pass"
    cores = 2 * (os.cpu_count() or 1)
    run = backend.start(f"groups.count={GROUPS}", *timing, args={"steps": steps, "step-time": 0.01})
    run.until(lambda: all(len(run.steps(g)) >= 10 for g in range(GROUPS)), "training")
    before = run.steps(0)[-1]["quorum"]
    load = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(cores)]
    try:
        run.finish().check_deaths()
    finally:
        for process in load:
            process.kill()
            process.wait()
    return int(run.steps(0)[-1]["quorum"] - before), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="steps under load")
    args = parser.parse_args()
    print(
        f"{'heartbeat ms':>12}{'stall s (median)':>18}{'changes under load':>20}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        backend = Backend("local", {}, Path(folder))
        for heartbeat in (500, 1000, 2000, 5000):
            timing = [f"health.lost_after_s={heartbeat / 100}", "lighthouse=torchft"]
            median = statistics.median(stall(backend, timing) for _ in range(args.n))
            changes, steps = changes_under_load(backend, timing, args.steps)
            print(f"{heartbeat:>12}{median:>18.2f}{f'{changes} in {steps} steps':>20}", flush=True)


if __name__ == "__main__":
    main()
