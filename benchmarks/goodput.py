"""How much training is left when processes keep dying? One training and one schedule of kills under every contender.

    python benchmarks/goodput.py --groups 4 --mean 20 --minutes 10 --blocks 2
    python benchmarks/goodput.py --contenders ftslurm-cold torchft-runner --minutes 2
    python benchmarks/goodput.py --table benchmarks/results/goodput-4x20.json

Every contender gets a throwaway Slurm of its own, trains in peace for a while, and then loses the training process of
a random replica to SIGKILL, again and again: a Poisson process with a fixed seed, the same kills for every contender.
Each contender's time under faults is cut into blocks, and the blocks of all contenders are interleaved, so that what
else the machine does meanwhile falls on all of them. A finished block is written at once; the same command again runs
only the blocks that are missing. benchmarks/README.md has the contenders and what differs from their published form.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contenders.all import ALL
from contenders.contender import Contender, Session
from contenders.scene import Scene
from goodput_measures import Commit, Kill, Measures, Window, measure
from goodput_report import write
from results import FOLDER, conditions, save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import Cluster, scratch

READY_STEPS = 5  # that every replica has committed, together with all others, before the quiet window
READY_WITHIN_S = 300.0
END_S = 10.0  # what the start and the end of a Slurm take, for the estimate


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    groups: int
    mean_s: float  # between two kills
    minutes: float  # under faults, each contender
    blocks: int
    quiet_s: float
    seed: int
    step_s: float
    checkpoint_every: int

    @property
    def faults_s(self) -> float:
        """The length of the window with faults of one block."""
        return 60 * self.minutes / self.blocks

    @property
    def settle_s(self) -> float:
        """The time between the first steps and the quiet window, in which a standby becomes warm."""
        return self.quiet_s / 2

    def kills(self, block: int) -> list[tuple[float, int]]:
        """Return when to kill which replica: seconds from the beginning of the block's window with faults."""
        rng = random.Random(1000 * self.seed + block)  # noqa: S311 - not a secret
        kills, at = [], rng.expovariate(1 / self.mean_s)
        while at < self.faults_s:
            kills.append((at, rng.randrange(self.groups)))
            at += rng.expovariate(1 / self.mean_s)
        return kills


@dataclass
class Block:
    """The result of one contender's block."""

    contender: str
    block: int
    code: str  # version and commit of ftslurm
    load: list[float] = field(default_factory=list)  # averages over 1 min: at its beginning and at its end
    ready_s: float | None = None  # from the start until every replica had committed READY_STEPS steps
    note: str | None = None  # how it ended, if it did not last
    skipped: int = 0  # kills that found no process of that replica
    calls: dict[str, int] = field(default_factory=dict)  # of Slurm commands in the window with faults
    jobs: int = 0  # submitted in the window with faults
    measures: Measures | None = None


def run_block(contender: Contender, plan: Plan, number: int) -> Block:
    """Measure one block of one contender on a new Slurm."""
    block = Block(contender.name, number, str(conditions()["ftslurm"]), [os.getloadavg()[0]])
    with scratch() as folder:
        cluster = Cluster.start(folder / "c", nodes=plan.groups + 1)
        try:
            settings = {"step_s": plan.step_s, "checkpoint_every": plan.checkpoint_every}
            scene = Scene.prepare(cluster, folder / "s", plan.groups, **settings)
            session = contender.start(scene)
            try:
                _watch(scene, session, plan, block)
            finally:
                with suppress(Exception):  # whatever it has left dies with its Slurm
                    session.end()
        except Exception as error:
            block.note = f"failed: {type(error).__name__}: {error}"
        finally:
            cluster.stop()
    block.load.append(os.getloadavg()[0])
    return block


def _watch(scene: Scene, session: Session, plan: Plan, block: Block) -> None:
    began = time.time()
    if not scene.wait(lambda: session.ended() or _ready(scene), READY_WITHIN_S) or session.ended():
        why = session.ended() or f"no {READY_STEPS} steps of each replica within {READY_WITHIN_S:.0f} s"
        block.note = f"did not train: {why}\n{scene.log_tail()}"
        return
    block.ready_s = time.time() - began
    scene.wait(session.ended, plan.settle_s)
    quiet = Window(time.time(), time.time() + plan.quiet_s)
    scene.wait(session.ended, plan.quiet_s)
    faults = Window(time.time(), time.time() + plan.faults_s)
    calls, jobs = scene.calls(), scene.jobs_submitted()
    kills: list[Kill] = []
    for at, replica in plan.kills(block.block):
        scene.wait(session.ended, faults.begin + at - time.time())
        if session.ended():
            break
        kill = scene.kill(replica)
        kills += [kill] if kill else []
        block.skipped += kill is None
    scene.wait(session.ended, faults.end - time.time())
    if ended := session.ended():
        block.note = f"ended after {time.time() - faults.begin:.0f} s: {ended}"
    block.calls = dict(scene.calls() - calls)
    block.jobs = scene.jobs_submitted() - jobs
    commits: list[Commit] = scene.commits()
    block.measures = measure(commits, kills, plan.groups, quiet, faults)


def _ready(scene: Scene) -> bool:
    steps = Counter(commit.replica for commit in scene.commits() if commit.participants == scene.groups)
    return all(steps[replica] >= READY_STEPS for replica in range(scene.groups))


def run(plan: Plan, names: list[str], path: Path) -> None:
    """Run the blocks that the file does not have yet, and write table and picture after each."""
    data: dict[str, Any] = {"plan": asdict(plan), "conditions": conditions(), "contenders": {}, "blocks": []}
    if path.exists():
        data = json.loads(path.read_text())
    for name in names:
        contender = ALL[name]
        why = contender.missing()
        facts = {"what": contender.what, "adaptations": contender.adaptations, "missing": why}
        data["contenders"][name] = facts | {"versions": {} if why else contender.versions()}
        if why:
            print(f"{name}: not run: {why}")
    done = {(block["contender"], block["block"]) for block in data["blocks"]}
    there = [name for name in names if not data["contenders"][name]["missing"]]
    to_do = [(b, name) for b in range(plan.blocks) for name in there if (name, b) not in done]
    each_s = 30 + plan.settle_s + plan.quiet_s + plan.faults_s + END_S
    print(
        f"{len(to_do)} blocks of about {each_s:.0f} s: {len(to_do) * each_s / 60:.0f} min, if all of them start at once"
    )
    for number, name in to_do:
        print(f"{time.strftime('%H:%M:%S')} {name}, block {number + 1} of {plan.blocks} ...", flush=True)
        block = run_block(ALL[name], plan, number)
        data["blocks"].append(asdict(block))
        save(path, data)
        write(path, data)
        if block.measures:
            print(f"  goodput {block.measures.goodput:.2f}, step efficiency {block.measures.step_efficiency:.2f}")
        if block.note:
            print(f"  {block.note.splitlines()[0]}")
    save(path, data)
    write(path, data)
    print(path.with_suffix(".md").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--groups", type=int, default=4, help="replica groups, or ranks, of one process each")
    parser.add_argument("--mean", type=float, default=20.0, help="mean seconds between two kills")
    parser.add_argument("--minutes", type=float, default=10.0, help="under faults, each contender")
    parser.add_argument("--blocks", type=int, default=2, help="parts of that time, each with a training of its own")
    parser.add_argument("--quiet", type=float, default=30.0, help="seconds in peace before the faults of each block")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--step", type=float, default=0.2, help="seconds of sleep in each step")
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps, for contenders that resume from them")
    parser.add_argument("--contenders", nargs="+", choices=list(ALL), default=list(ALL))
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder of goodput-GROUPSxMEAN.json, .md and .svg")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only write table and picture of this file anew")
    args = parser.parse_args()
    if args.table:
        if not args.table.is_file():
            parser.error(f"there is no file {args.table}")
        write(args.table, json.loads(args.table.read_text()))
        return
    if min(args.groups, args.mean, args.minutes, args.blocks, args.step, args.quiet / args.step - 5) <= 0:
        parser.error("--groups, --mean, --minutes, --blocks and --step are positive; --quiet lasts more than 5 steps")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the Slurm of the block ends too
    every = args.checkpoint_every
    plan = Plan(args.groups, args.mean, args.minutes, args.blocks, args.quiet, args.seed, args.step, every)
    path = args.out / f"goodput-{args.groups}x{args.mean:g}.json"
    if path.exists() and json.loads(path.read_text())["plan"] != asdict(plan):
        parser.error(f"{path} has results of another plan: move it away, or choose another folder with --out")
    run(plan, args.contenders, path)


if __name__ == "__main__":
    main()
