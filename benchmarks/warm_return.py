"""Where does the time go between the death of a group and its first committed step?

    python benchmarks/warm_return.py [--n 10] [--arms warm cold]
    python benchmarks/warm_return.py --arms warm native       torch's own process groups, too: torch 2.14, torchft 0.3

Four groups of one worker train tests/scripts/toy.py with steps of 0.1 s on a throwaway Slurm, by turns with a warm
standby for each group (standby=each) and without. `kill -9` hits one group, then three together, when all train again
and all standbys are warm. The parts come from the journal (group_joined.phases); the kill and the first committed step
are the benchmark's and the script's own clocks. A step that is under way at the kill is lost for all, so the first
committed step cannot come sooner than the rest of a step and a new one: the last column has the return less one step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import results
from process_cost import cpu_s, stat

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import Cluster, scratch
from harness import Backend

GROUPS = 4
STEP_S = 0.1
ARMS = {
    "warm": ["standby=each"],
    "cold": ["standby=none"],
    "native": ["standby=each", "torchft.process_group=native"],
}
VICTIMS = {"one": (1,), "three": (1, 2, 3)}
PARTS = ("notice", "end", "wait", "start", "import", "assign", "join", "commit")
QUIET_S = 2.0


@dataclass(frozen=True)
class Return:
    """The return of the last of the killed groups: seconds from the kill on, and of the parts of its recovery."""

    arm: str
    killed: str
    seconds: float
    step_s: float  # median time between two commits of a survivor before the kill
    pause_s: float  # longest time between two commits of the survivor around the kill
    parts: dict[str, float]


class Training:
    """One run of four groups that are killed again and again."""

    def __init__(self, arm: str, backend: Backend) -> None:
        self.arm = arm
        self.run = backend.start(
            f"groups.count={GROUPS}",
            *ARMS[arm],
            "restart.max_per_group=100000",
            "restart.backoff_s=0",
            args={"open-end": True, "step-time": STEP_S},
        )
        self.attempts = dict.fromkeys(range(GROUPS), 0)
        self.run.wait_for_steps(5, GROUPS)
        self.controller = int(str(self.run.wait_for("run_started")["pid"]))

    def kill(self, killed: str) -> Return:
        """Kill the groups at once, wait until all train again, and return how the last one came back."""
        self._wait_until_calm()
        run, victims = self.run, VICTIMS[killed]
        before = [one["time"] for one in run.steps(0)][-20:]
        at = min([run.kill(group) for group in victims])
        for group in victims:
            self.attempts[group] += 1
            run.wait_until_back(group, attempt=self.attempts[group])
        run.until(lambda: all(self._first(group) for group in victims), "the first steps are written")
        last = max(victims, key=self._first)
        run.until(lambda: run.steps(0)[-1]["time"] > self._first(last) + 3 * STEP_S, "the survivor goes on")
        times = [one["time"] for one in run.steps(0)]
        return Return(
            self.arm,
            killed,
            self._first(last) - at,
            statistics.median(b - a for a, b in itertools.pairwise(before)),
            max(b - a for a, b in itertools.pairwise(times) if b > at),
            self._parts(last, at),
        )

    def end(self) -> None:
        """End the training and check that all weights are equal and that no step is lost."""
        last = self.run.end_soon()
        self.run.finish().check_deaths()
        returned = {group for group, attempt in self.attempts.items() if attempt}
        self.run.check_training(last, survivors={0}, returned=returned)

    def _parts(self, group: int, at: float) -> dict[str, float]:
        (ended,) = self.run.named("step_exited", group=group, attempt=self.attempts[group] - 1)
        (joined,) = self.run.named("group_joined", group=group, attempt=self.attempts[group])
        phases = joined["phases"]
        assert isinstance(phases, dict)
        found = {name: float(phases[name] or 0.0) for name in PARTS[1:]}
        return {"notice": float(str(ended["noticed"])) - at} | found

    def _first(self, group: int) -> float:
        """Return when this group's present attempt has committed its first step; 0: it has not."""
        times = [one["time"] for one in self.run.steps(group) if one["attempt"] == self.attempts[group]]
        return min(times, default=0.0)

    def _wait_until_calm(self) -> None:
        run = self.run

        def warm() -> bool:
            taken = len([one for one in run.named("step_launched") if one["standby"]])
            ready = len([one for one in run.named("step_ready") if str(one["unit"]).startswith("standby")])
            return ready - taken >= GROUPS

        if self.arm != "cold":
            run.until(warm, "every group has a warm standby", patience_s=180)
        steps = len(run.steps(0))
        run.until(lambda: len(run.steps(0)) > steps + QUIET_S / STEP_S, "some undisturbed steps")


def rows_of(found: list[Return]) -> list[list[str]]:
    """Return the rows of the table: medians, and the spread of the whole."""
    rows = []
    for arm, killed in itertools.product(ARMS, VICTIMS):
        mine = [one for one in found if (one.arm, one.killed) == (arm, killed)]
        if mine:
            over = [one.seconds - one.step_s for one in mine]
            parts = [f"{statistics.median(one.parts[name] for one in mine):.3f}" for name in PARTS]
            pause = statistics.median(one.pause_s for one in mine)
            whole = [results.spread([one.seconds for one in mine]), results.spread(over), f"{pause:.2f}"]
            rows.append([f"{arm}, {killed} killed", str(len(mine)), *parts, *whole])
    return rows


def write(found: list[Return], about: dict[str, object]) -> str:
    """Write what is known so far; return the table."""
    results.save(results.FOLDER / "warm_return.json", {"conditions": about, "returns": [asdict(one) for one in found]})
    table = results.table(["seconds", "n", *PARTS, "back", "back less one step", "survivor's pause"], rows_of(found))
    note = f"Medians; of `back` also least and greatest. Steps of {STEP_S:g} s. {results.told(about)}\n"
    (results.FOLDER / "warm_return.md").write_text(f"{table}\n{note}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10, help="kills of each kind")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["warm", "cold"])
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile ftslurm anew
    print(f"about {len(options.arms) * (1 + options.n * 0.8):.0f} minutes", flush=True)
    about, found = results.conditions(), list[Return]()
    with scratch() as folder, ExitStack() as stack:
        cluster = Cluster.start(folder / "slurm", nodes=GROUPS + 1)
        stack.callback(cluster.stop)
        for arm in options.arms:
            runs = folder / arm
            runs.mkdir()
            training = Training(arm, Backend("slurm", cluster.env, runs))
            before = cpu_s(training.controller)
            for _ in range(options.n):
                found += [training.kill(killed) for killed in VICTIMS]
                write(found, about)
            spent_s = cpu_s(training.controller) - before
            resident_mb = int(stat(training.controller)[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
            print(f"{arm}: controller {spent_s:.2f} CPU s, {resident_mb:.0f} MB", flush=True)
            training.end()
            cluster.clear()
    print(write(found, about))


if __name__ == "__main__":
    main()
