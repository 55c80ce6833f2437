"""Is a healthy group ever thrown out of the quorum because the machine is busy?

    python benchmarks/false_evictions.py                               10,000 steps with the settings as they are
    python benchmarks/false_evictions.py lighthouse=torchft            the same before torchft's own Lighthouse

Three groups train tests/scripts/toy.py as fast as they can, while as many busy loops as there are cores (or --load N)
run beside them. A group that is dropped and comes back changes the quorum's id twice. The id must not change after all
groups have joined.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import Backend, busy_cores

GROUPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy loops")
    parser.add_argument("overrides", nargs="*", help="settings of the run, as health.lost_after_s=2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        backend = Backend("local", {}, Path(folder))
        run = backend.start(f"groups.count={GROUPS}", *args.overrides, args={"steps": args.steps, "step-time": 0})
        run.until(lambda: any(s["participants"] == GROUPS for s in run.steps(0)), "all groups in one quorum")
        with busy_cores(args.load):
            run.until(lambda: run.process.poll() is not None, "the end", patience_s=1800)
        run.finish().check_deaths()
        run.check_training(args.steps, survivors=set(range(GROUPS)))
        steps = run.steps(0)
        first = next(i for i, s in enumerate(steps) if s["participants"] == GROUPS)
        ids = [int(s["quorum"]) for s in steps[first:]]
        changes = sum(a != b for a, b in itertools.pairwise(ids))
        gaps = sorted(b["time"] - a["time"] for a, b in itertools.pairwise(steps))
        per_s = (len(steps) - 1) / (steps[-1]["time"] - steps[0]["time"])
        aside = len(run.named("group_set_aside"))
        what = " ".join(args.overrides) or "as it is"
        print(
            f"{what}: {len(ids)} steps beside {args.load} busy loops, {per_s:.0f} a second, "
            f"longest step {gaps[-1]:.2f} s: the quorum changed {changes} times, a group was set aside {aside} times"
        )


if __name__ == "__main__":
    main()
