"""How long does a failed replica take to come back, and how long do the others wait? ftslurm beside the contenders.

    python benchmarks/recovery.py                                     everything, 10 of each
    python benchmarks/recovery.py -n 3 --arms ftslurm-cold ftslurm-warm ray --faults one two
    python benchmarks/recovery.py --table                             only write table and picture anew

Every arm trains benchmarks/training.py, five replicas of one process with 0.1 s of sleep a step, on a throwaway Slurm
of its own. In it the processes of one replica, of two and of four at once are killed with SIGKILL; a node vanishes with
all that runs on it; the controller is killed, and two seconds later a replica; the Lighthouse is killed; in array mode
the batch process of a replica's job. ftslurm-wide has groups of two nodes, of which one rank is killed. A step that has
begun at a kill is lost and repeated with torchft, so the others' pause is two steps and what the arm adds.

The arms are interleaved in blocks of a few repetitions, each with a training of its own, and so are the bare starts to
which all is compared: `python training.py` by itself, one and four at once. Each result is written at once to
benchmarks/results/recovery.json, and the same command again does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from bare_start import bare_start
from cluster import scratch
from contenders.ftslurm_run import Cold
from recovery_arms import Arm, Fault, arms
from recovery_report import write
from recovery_scene import START_LIMIT_S, STEP_S, NotCalm, Training
from results import FOLDER, conditions, save

BLOCK = 5  # repetitions of each fault before the next arm has its turn
STARTS = 3  # of a training that does not come up
BARE = "bare"
START_S, FAULT_S, BARE_S = 45.0, 20.0, 15.0  # what things take, for the estimate


class Bench:
    """The results so far, and the arms to measure."""

    def __init__(self, path: Path, found: dict[str, Arm], faults: Sequence[Fault], n: int) -> None:
        self.path, self.arms, self.faults, self.n = path, found, faults, n
        plan = {"groups": 5, "step_s": STEP_S}
        self.data: dict[str, Any] = {"plan": plan, "conditions": conditions(), "arms": {}, "rows": []}
        if path.exists():
            self.data |= {key: value for key, value in json.loads(path.read_text()).items() if key != "conditions"}
        for arm in found.values():
            why = arm.contender.missing()
            facts: dict[str, object] = {"what": arm.contender.what, "adaptations": arm.contender.adaptations}
            facts |= {"missing": why, "contender": not isinstance(arm.contender, Cold)}
            self.data["arms"][arm.name] = facts | {"versions": {} if why else arm.contender.versions()}

    def run(self) -> None:
        """Measure what is missing, in blocks."""
        print(f"about {self.estimate_s() / 60:.0f} min, if everything comes back", flush=True)
        self.write()
        for block in range(-(-self.n // BLOCK)):
            repetitions = range(BLOCK * block, min(self.n, BLOCK * (block + 1)))
            for fault, count in ((Fault.ONE, 1), (Fault.FOUR, 4)):
                for number in repetitions:
                    if (fault is Fault.ONE or fault in self.faults) and not self.has(BARE, fault, number):
                        note = "" if (back_s := bare_start(count)) else "no step within the limit"
                        self.add(BARE, fault, number, {"back_s": back_s, "pause_s": None, "note": note})
            for arm in self.arms.values():
                if not self.data["arms"][arm.name]["missing"]:
                    self.block(arm, repetitions)
        print(self.path.with_suffix(".md").read_text())

    def block(self, arm: Arm, repetitions: Sequence[int]) -> None:
        """Measure an arm: the faults of one training, and then, each in one of its own, lost nodes."""
        todo = [(fault, k) for k in repetitions for fault in self.of(arm) if not self.has(arm.name, fault, k)]
        for turns in [[turn for turn in todo if turn[0] is not Fault.NODE], *([t] for t in todo if t[0] is Fault.NODE)]:
            while turns:
                turns = turns[self.one_training(arm, turns) :]

    def one_training(self, arm: Arm, turns: Sequence[tuple[Fault, int]]) -> int:
        """Start a training and make these faults until one is not overcome; return how many were made."""
        for attempt in range(STARTS):
            with scratch() as folder:
                training = Training.start(arm, folder / "t", spares=turns[0][0] is Fault.NODE)
                try:
                    training.wait_until_calm(START_LIMIT_S)
                    return self.faults_of(training, turns)
                except NotCalm as error:
                    print(f"{arm.name}: start {attempt + 1} of {STARTS}: {error}", flush=True)
                finally:
                    training.close()
        fault, number = turns[0]
        self.add(
            arm.name, fault, number, {"back_s": None, "pause_s": None, "note": f"did not start in {STARTS} attempts"}
        )
        return 1

    def faults_of(self, training: Training, turns: Sequence[tuple[Fault, int]]) -> int:
        """Make faults in a training until one is not overcome; return how many were made."""
        for count, (fault, number) in enumerate(turns):
            try:
                if count:
                    training.wait_until_calm()
                cost, note = training.suffer(fault)
            except NotCalm as error:
                if not count:
                    raise
                print(f"{training.arm.name}: a new training: {error}", flush=True)
                return count
            self.add(training.arm.name, fault, number, asdict(cost) | {"note": note})
            if note:
                return count + 1
        return len(turns)

    def add(self, arm: str, fault: Fault, number: int, values: dict[str, Any]) -> None:
        """Write one result."""
        row = {
            "arm": arm,
            "fault": fault.value,
            "number": number,
            "restarted": None,
            "undone": None,
            "note": "",
        } | values
        self.data["rows"].append(row | {"load": os.getloadavg()[0]})
        shown = ", ".join(f"{key} {value:.2f}" for key, value in values.items() if isinstance(value, float))
        print(f"{time.strftime('%H:%M:%S')} {arm}, {fault.told}, {number + 1}: {shown} {row['note']}", flush=True)
        self.write()

    def write(self) -> None:
        save(self.path, self.data)
        write(self.path, self.data)

    def of(self, arm: Arm) -> list[Fault]:
        """Return the faults to make in an arm."""
        return [fault for fault in arm.faults if fault in self.faults]

    def has(self, arm: str, fault: Fault, number: int) -> bool:
        """Return whether this result is there."""
        return any((row["arm"], row["fault"], row["number"]) == (arm, fault.value, number) for row in self.data["rows"])

    def estimate_s(self) -> float:
        """Return what the missing results take."""
        total = 0.0
        for arm in self.arms.values():
            missing = [f for f in self.of(arm) for k in range(self.n) if not self.has(arm.name, f, k)]
            nodes = missing.count(Fault.NODE)
            total += (FAULT_S + START_S) * nodes + FAULT_S * (len(missing) - nodes) + START_S * -(-self.n // BLOCK)
        return total + BARE_S * self.n


def main() -> None:
    found = arms()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", "--n", type=int, default=10, help="repetitions of each fault in each arm")
    parser.add_argument("--arms", nargs="+", choices=list(found), default=list(found))
    names = [fault.value for fault in Fault]
    parser.add_argument("--faults", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder of recovery.json, .md and .svg")
    parser.add_argument("--table", action="store_true", help="only write table and picture anew")
    args = parser.parse_args()
    path = args.out / "recovery.json"
    if args.table:
        write(path, json.loads(path.read_text()))
        return
    if args.n < 1:
        parser.error("-n is at least 1")
    Bench(path, {name: found[name] for name in args.arms}, [Fault(name) for name in args.faults], args.n).run()


if __name__ == "__main__":
    main()
