"""How long is a step that only waits for others, with our Lighthouse and with torchft's own?

    python benchmarks/busy_step.py                  24 windows of a second for each, about a minute and a half

Two runs of two groups train benchmarks/busy_training.py on this machine, one with each Lighthouse. They take turns in
windows of a second: one steps as fast as it can, the other a few times a second. So whatever else the machine does
falls on both, and the fastest steps of each tell what the Lighthouse costs: a timer of a millisecond is a fifth of one.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import Backend, Run

TRAINING = Path(__file__).with_name("busy_training.py")
GROUPS = 2
KINDS = ("ftslurm", "torchft")
WINDOW_S = 1.0


def measure(windows: int, folder: Path) -> dict[str, float]:
    """Return the seconds of a step with each Lighthouse, of the fastest twentieth: nothing else has delayed those."""
    backend = Backend("local", {}, folder)
    runs: dict[str, Run] = {}
    try:
        for kind in KINDS:
            runs[kind] = backend.start(f"lighthouse={kind}", f"groups.count={GROUPS}", script=TRAINING)
        for run in runs.values():
            for group in range(GROUPS):
                run.wait_for("group_joined", group=group)
        began: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(windows):
            for kind in KINDS if number % 2 else reversed(KINDS):
                (busy := runs[kind].dir / "busy").touch()
                began[kind].append(time.monotonic())
                time.sleep(WINDOW_S)
                busy.unlink()
                time.sleep(0.3)
        for run in runs.values():
            (run.dir / "busy").touch()
            (run.dir / "end").touch()
        steps = {}
        for kind, run in runs.items():
            run.finish().check_deaths()
            found = re.search(r"^steps: (.*)$", run.rank_log(0), re.MULTILINE)
            assert found, run.rank_log(0)
            steps[kind] = json.loads(found[1])
    finally:
        for run in runs.values():
            run.abandon()
    return {kind: _fast(steps[kind], began[kind]) for kind in KINDS}


def _fast(steps: Sequence[tuple[float, float]], began: Sequence[float]) -> float:
    """Return the seconds that the fastest twentieth of the steps in all windows took at most."""
    return statistics.quantiles([took for at, took in steps if any(a <= at < a + WINDOW_S for a in began)], n=20)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--windows", type=int, default=24)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.windows, Path(folder))
    shown = ", ".join(f"{kind} {1e3 * seconds:.2f} ms" for kind, seconds in found.items())
    print(f"a busy step: {shown}; ratio {found['ftslurm'] / found['torchft']:.3f}")


if __name__ == "__main__":
    main()
