"""A training in array mode that crosses a time limit about once a minute: what does it lose, how long does it pause?

    python benchmarks/time_limits.py --minutes 15 --tracking linuxproc
    python benchmarks/time_limits.py --minutes 15 --tracking pgid --groups 3

Every job of the run may last three minutes, that of the controller too. So groups move to new jobs, and the lead moves
between jobs, as in weeks of a real run. Workers are light (light_worker.py). No committed step may be lost, redone or
changed, no group may restart but to move, no node may be excluded. The exit code is 1 if one of these has happened.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chaos_judge import judge
from cluster import Cluster, scratch
from harness import Backend, Run

STEP_S = 0.1
AROUND_S = 5.0  # a pause this long before or after the change of the leader belongs to it
Event = Mapping[str, Any]


def changes_of_lead(events: Sequence[Event]) -> list[float]:
    """Return when another controller began to lead."""
    return [float(event["time"]) for event in events if event["event"] == "run_started"][1:]


def pauses(steps: Sequence[Mapping[str, Any]], changes: Sequence[float]) -> list[float]:
    """Return the longest time between two commits of one attempt of a group, around each of these moments."""
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in steps:
        times[step["group"], step["attempt"]].append(step["time"])
    gaps = [pair for mine in times.values() for pair in itertools.pairwise(sorted(mine))]
    near = ([b - a for a, b in gaps if a < at + AROUND_S and b > at - AROUND_S] for at in changes)
    return [round(max(some, default=float("inf")), 2) for some in near]


def told(run: Run, groups: int) -> dict[str, Any]:
    """Return what a run has lost."""
    events = run.events
    steps = [step for group in range(groups) for step in run.steps(group)]
    exits = Counter(str(event["cause"]) for event in events if event["event"] == "step_exited")
    moves = pauses(steps, changes_of_lead(events))
    return {
        "steps": max((int(step["step"]) for step in steps), default=0),
        "problems": judge(events, steps).problems,
        "full_restarts": len(run.named("full_restart")),
        "excluded": [event["node"] for event in run.named("node_excluded")],
        "exits": dict(exits),
        "leaders": len(run.named("run_started")),
        "pauses_s": moves,
        "median_s": statistics.median(moves) if moves else None,
        "max_s": max(moves, default=None),
        "restarts": [event["restarts"] for event in run.named("run_finished")],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--tracking", choices=["linuxproc", "pgid"], default="linuxproc")
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a folder that keeps the run directory and what the groups committed")
    parser.add_argument("settings", nargs="*", help="further settings of the run")
    args = parser.parse_args()
    with scratch() as folder:
        out = args.out or folder / "out"
        out.mkdir(parents=True)
        conf = f"ProctrackType=proctrack/{args.tracking}"
        cluster = Cluster.start(folder / "c", nodes=2 * args.groups + 2, cpus=1, extra_conf=conf)
        try:
            backend = Backend("slurm", cluster.env, out, light=True)
            settings = ("cluster.kind=array", "cluster.time=3", f"groups.count={args.groups}", *args.settings)
            run = backend.start(*settings, args={"open-end": True, "step-time": STEP_S})
            try:
                run.wait_for_steps(5, args.groups)
                until = time.monotonic() + 60 * args.minutes
                while time.monotonic() < until and run.process.poll() is None:
                    time.sleep(1.0)
                run.end_soon()
                run.process.wait(60)
            finally:
                result = told(run, args.groups)
                run.abandon()
        finally:
            for log in (cluster.folder / "log").glob("*.log"):
                shutil.copy(log, out)
            cluster.stop()
    print(json.dumps({"tracking": args.tracking, "minutes": args.minutes, **result}, indent=1))
    allowed = {"ok", "time_limit", "cancelled"}
    bad = result["problems"] or result["full_restarts"] or result["excluded"] or set(result["exits"]) - allowed
    return int(bool(bad) or result["restarts"] != [0])


if __name__ == "__main__":
    sys.exit(main())
