"""What does it cost when the Lighthouse is killed, again and again, while groups train?

    python benchmarks/lighthouse_failover.py                     on this machine, 20 kills
    python benchmarks/lighthouse_failover.py --cluster slurm     on a throwaway 4-node Slurm started for it

Three groups of one worker train tests/scripts/toy.py with 0.1 s of sleep a step; `kill -9` hits the Lighthouse every 40
steps. During every other pair of kills all cores are busy, and with every fifth kill a group is killed too, just before
or after. For each kill it prints the time until the Lighthouse was back, and the longest pause between two commits of
the groups that were not killed. At the end it asserts: these groups committed every step once, only killed groups were
restarted, quorum ids never fell, and all weights are equal.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import Cluster, scratch
from harness import Backend, Run, busy_cores

GROUPS, STEP_S, EVERY = 3, 0.1, 40


def pause(run: Run, group: int, kill: float, until: float) -> float:
    """Return the longest time between two commits of a group that overlaps the given time after a kill."""
    times = [s["time"] for s in run.steps(group)]
    return max((b - a for a, b in itertools.pairwise(times) if b > kill and a < until), default=float("nan"))


def failover(backend: Backend, kills: int, *overrides: str) -> None:
    """Measure one run; print a line for each kill and the summary.

    Raises:
        AssertionError: a step or a group was lost.
    """
    steps = EVERY * (kills + 3)
    run = backend.start(f"groups.count={GROUPS}", *overrides, args={"steps": steps, "step-time": STEP_S})
    made: list[tuple[float, bool, int | None]] = []
    for number in range(kills):
        run.until(lambda n=number: len(run.steps(0)) >= EVERY * (n + 1), "some more steps")  # type: ignore[misc]
        run.until(lambda n=number: len(run.named("step_ready", unit="lighthouse")) == n + 1, "the Lighthouse")  # type: ignore[misc]
        loaded, victim = number % 4 >= 2, (1 + number // 5 % 2 if number % 5 == 3 else None)
        with ExitStack() as stack:
            if loaded:
                stack.enter_context(busy_cores())
                time.sleep(0.5)
            if victim is not None and number % 2:
                run.kill(victim)
                time.sleep(0.05)
            at = run.kill_lighthouse()
            if victim is not None and not number % 2:
                time.sleep(0.05)
                run.kill(victim)
            made.append((at, loaded, victim))
            time.sleep(2.0)
        if victim is not None:
            attempts = len(run.named("step_launched", group=victim))
            run.until(lambda v=victim, a=attempts: run.named("group_joined", group=v, attempt=a - 1), "the group")  # type: ignore[misc]
    run.finish().check_deaths()
    report(run, steps, made)


def report(run: Run, steps: int, made: list[tuple[float, bool, int | None]]) -> None:
    killed = [victim for _, _, victim in made if victim is not None]
    launched = [float(str(e["time"])) for e in run.named("step_ready", unit="lighthouse")]
    rows: list[tuple[str, float, float]] = []
    for number, (at, loaded, victim) in enumerate(made):
        back = min(time for time in launched if time > at)
        gap = max(pause(run, g, at, back + 1.0) for g in range(GROUPS) if g not in killed or g != victim)
        kind = ("busy" if loaded else "idle") + ("" if victim is None else ", a group killed too")
        rows.append((kind, back - at, gap))
        print(f"kill {number + 1:>2}: back after {back - at:.2f} s, longest pause {gap:.2f} s ({kind})")
    run.check_training(steps, survivors=set(range(GROUPS)) - set(killed), returned=set(killed))
    for group in range(GROUPS):
        assert len(run.named("step_launched", group=group)) == 1 + killed.count(group), f"group {group} was restarted"
        for _, of_attempt in itertools.groupby(run.steps(group), key=lambda s: s["attempt"]):
            numbers = [int(s["step"]) for s in of_attempt]
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), f"group {group} committed {numbers}"
    quorums = [s["quorum"] for s in run.steps(0)]
    assert quorums == sorted(quorums)
    gaps = [b["time"] - a["time"] for a, b in itertools.pairwise(run.steps(0))]
    print(f"a step takes {statistics.median(gaps):.2f} s (median); the Lighthouse was killed {len(made)} times:")
    for kind in sorted({kind for kind, _, _ in rows}):
        some = [row[1:] for row in rows if row[0] == kind]
        middle = [statistics.median(row[column] for row in some) for column in (0, 1)]
        worst = max(row[1] for row in some)
        print(
            f"  {kind:<26} {len(some):>2} x: back after {middle[0]:.2f} s, pause {middle[1]:.2f} s, at most {worst:.2f}"
        )
    print(f"no step of {steps} was lost, no group was restarted but those we killed ({len(killed)}), weights are equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cluster", choices=["local", "slurm"], default="local")
    parser.add_argument("--here", action="store_true", help="with --cluster slurm: use the Slurm of this machine")
    parser.add_argument("-n", type=int, default=20, help="kills")
    parser.add_argument("overrides", nargs="*", help="settings of the run, as lighthouse=torchft")
    args = parser.parse_args()
    with ExitStack() as stack:
        environ: dict[str, str] = {}
        if args.cluster == "slurm" and not args.here:
            cluster = Cluster.start(stack.enter_context(scratch()) / "bench")
            stack.callback(cluster.stop)
            environ = cluster.env
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
        failover(Backend(args.cluster, environ, folder), args.n, *args.overrides)


if __name__ == "__main__":
    main()
