"""A seeded chaos campaign: real faults, from outside, on real Slurm. Is any committed step lost, anybody harmed by it?

    python benchmarks/chaos.py --short --seed 1            50 faults, steps and array mode: four minutes on 2 cores
    python benchmarks/chaos.py --faults 1000 --parallel 2  all modes; `--out DIR` takes what it finds
    python benchmarks/chaos.py --modes array --only pilot "controller's node" --faults 20 --seed 7
    python benchmarks/chaos.py --hosts --faults 100        nodes are hosts with cables of their own, which are cut, kept
                                                           apart and slowed down (needs root and iproute2)
    python benchmarks/chaos.py --slurm /srv/trixie ...     with the Slurm of another Debian, in that folder (needs root;
                                                           tests/versions.py makes such folders)

The campaign starts throwaway clusters (tests/cluster.py), each with a run of tests/scripts/toy.py, which writes a
digest of all weights and of the optimizer's state after every committed step. Faults hit the run one after another at
random moments: processes of every sort are killed, stopped and frozen, nodes lost, Slurm's daemons, pilots and
controllers killed, one at a time and together (chaos_kinds.py). After each fault it waits until all groups train again
and checks:

    no committed step was lost, redone or changed (chaos_judge.py)
    only groups that were hit have a new attempt, and only one, also between two faults and until the end
    no process has crashed
    the attempt that ended has the right cause in the journal
    no process of an ended attempt is left; at the end, no process, job or step at all

It measures the time until the hit groups commit again, and the longest pause of the others.

Every fault is a line of OUT/faults.jsonl with its mode, seed and number. These three repeat the same fault on the same
group: --modes M --seed S --first N --faults 1 --only KIND. A run with a failed check keeps its directory below OUT.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chaos_judge import judge
from chaos_kinds import KINDS, LIMIT_S, Blow, Kind
from chaos_scene import ENDED, MODES, Scene, pause, wait_for
from cluster import ClusterError, scratch
from deaths import crashed
from versions import entered

from ftslurm.submission.lead import MOST, WITHIN_S

START_S = 120.0  # limit for a run to reach its first steps
PER_RUN = 60  # faults; then the run ends and is judged as a whole, and the next run starts
TIDY_S = 10.0  # processes of an ended attempt must be gone this long after the recovery
SHORT = {"steps": 30, "array": 20}
LOCK = threading.Lock()


@dataclass
class Result:
    """One fault and its consequences."""

    mode: str
    seed: int
    number: int
    kind: str
    told: str = ""
    time: float = 0.0
    recovered: bool = False
    recovery_s: float | None = None  # until the last hit group committed again; none hit: until the run was healthy
    gap_s: float | None = None  # the longest pause between two commits of any group that was not hit
    extra: list[str] = field(default_factory=list)  # restarts that the fault does not explain
    wrong: list[str] = field(default_factory=list)  # causes in the journal that the fault does not explain
    left: list[str] = field(default_factory=list)  # remaining processes of ended attempts
    steps: list[str] = field(default_factory=list)  # committed steps lost, redone or changed
    died_with: int = 0
    why: str = ""  # the reason if not recovered
    load: float = 0.0
    kept: str = ""  # the run directory of a bad result

    @property
    def bad(self) -> bool:
        return self.spoilt or bool(self.extra or self.wrong)

    @property
    def spoilt(self) -> bool:
        """Whether the run must be replaced by a new one."""
        return not self.recovered or bool(self.left or self.steps)


class Campaign:
    """Faults of one mode, one after another, in as few runs as possible."""

    def __init__(self, mode: str, numbers: range, args: argparse.Namespace, out: Path) -> None:
        self.mode, self.seed, self.numbers, self.out = mode, args.seed, numbers, out
        self.light, self.once, only = args.light, args.once, args.only
        kinds = [name for name in only or KINDS if mode in KINDS[name].modes]
        if not kinds:
            raise SystemExit(f"chaos: no kind of {list(only)} belongs to the mode {mode}")
        self.kinds = kinds
        self.results: list[Result] = []
        self.crashes: list[float] = []  # when a controller was ended
        self.ends: list[str] = []  # problems at the end of a run

    def go(self, clusters: Path) -> None:
        """Inject all faults; after a fault that spoils its run, continue in a new run.

        Raises:
            KeyboardInterrupt: the campaign is to end; nothing is left running.
        """
        numbers = list(self.numbers)
        while numbers:
            scene, name = self._start(clusters, numbers[0])
            try:
                done = self._faults(scene, numbers[:PER_RUN], name)
                numbers = numbers[done:]
                if not self.results[-1].spoilt and (wrong := end(scene)):
                    self.ends.append(f"{self.mode} seed {self.seed}, at the end of run {name}: {wrong}")
                    print(self.ends[-1], flush=True)
                elif not any(result.bad for result in self.results[-done:]):
                    shutil.rmtree(self.out / name, ignore_errors=True)
            finally:
                scene.close()

    def _start(self, clusters: Path, first: int) -> tuple[Scene, str]:
        """Start a run for the faults from number `first` on; return it and its name."""
        name = f"{self.mode}-{self.seed}-{first}"
        shutil.rmtree(self.out / name, ignore_errors=True)  # from an earlier campaign with the same mode and seed
        scene = Scene.start(MODES[self.mode], clusters / name, self.out / name, self.light)
        try:
            if wait_for(lambda: scene.wrong(0.0) is None, START_S):
                return scene, name
            raise SystemExit(f"chaos: a run does not start: {scene.wrong(0.0)}; see {self.out / name}")
        except BaseException:
            scene.close()
            raise

    def _faults(self, scene: Scene, numbers: list[int], name: str) -> int:
        """Inject these faults up to the first that spoils the run; return the number injected."""
        for done, number in enumerate(numbers, 1):
            rng = Random(f"{self.seed}/{self.mode}/{number}")  # noqa: S311
            kind = self.kinds[number % len(self.kinds)] if self.once else self._choose(rng)
            result = Result(self.mode, self.seed, number, kind)
            try:
                one(scene, KINDS[kind], rng, result)
            except (ClusterError, AssertionError, LookupError, OSError, subprocess.TimeoutExpired) as error:
                result.why = result.why or f"the campaign itself: {error!r}"
                result.recovered = False
            if result.bad:
                result.kept = str(self.out / name)
            self._note(result)
            if result.spoilt:
                return done
        return len(numbers)

    def _choose(self, rng: Random) -> str:
        """Choose a kind, but no third end of a controller within a minute: the run would end on purpose (lead.py)."""
        recent = [at for at in self.crashes if time.time() - at < WITHIN_S + 5]
        kinds = self.kinds if len(recent) < MOST - 1 else [name for name in self.kinds if not _ends_controller(name)]
        kind = rng.choice(kinds or self.kinds)
        self.crashes = [*recent, *([time.time()] if _ends_controller(kind) else [])]
        return kind

    def _note(self, result: Result) -> None:
        self.results.append(result)
        with LOCK, (self.out / "faults.jsonl").open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        took = "-" if result.recovery_s is None else f"{result.recovery_s:.1f} s"
        gap = "-" if result.gap_s is None else f"{result.gap_s:.1f} s"
        said = f"{result.mode:<8}{result.number:>5} {result.kind:<22}{result.told:<26} back {took:>7}, gap {gap:>7}"
        words = "; ".join(w for w in (result.why, *result.extra, *result.wrong, *result.left, *result.steps) if w)
        print(said + (f"  !!! {words} (see {result.kept})" if result.bad else ""), flush=True)


def _ends_controller(kind: str) -> bool:
    return "controller" in kind and "stop" not in kind


def one(scene: Scene, kind: Kind, rng: Random, result: Result) -> None:
    """Wait for a healthy run, inject one fault, wait for recovery, and judge."""
    calm = time.time()
    if not wait_for(lambda: scene.wrong(calm) is None and scene.standbys_ready(), LIMIT_S):
        result.why = f"no calm before it: {scene.wrong(calm) or 'a standby is missing'}"
        return
    pause(rng.uniform(0, 0.5))
    result.extra += since_the_last(scene)
    before, leaders = scene.attempts(), len(scene.run.named("run_started"))
    result.time = at = time.time()
    blow = kind.act(scene, rng)
    result.told = blow.told
    try:
        _until_well(scene, blow, before, leaders, at, kind.limit_s, result)
    finally:
        scene.free()
        scene.bring_back()
    _judge(scene, blow, before, at, result)
    result.load = round(os.getloadavg()[0], 1)


def _until_well(
    scene: Scene, blow: Blow, before: dict[int, int], leaders: int, at: float, limit_s: float, result: Result
) -> None:
    later, since = sorted(blow.later, key=lambda pair: pair[0]), at

    def wrong() -> str | None:
        now = scene.attempts()
        again = {e["unit"] for e in scene.run.named("step_launched") if float(str(e["time"])) > at}
        if missing := sorted(blow.units - again):
            return f"{missing} was not launched again"
        if waiting := [g for g in sorted(blow.hit) if now[g] <= before[g]]:
            return f"groups {waiting} have no new attempt"
        if not blow.led and len(scene.run.named("run_started")) <= leaders:
            return "no controller has taken the lead"
        return scene.wrong(since)

    while True:
        while later and time.time() >= at + later[0][0]:
            later.pop(0)[1]()
            since = time.time()
        result.why = ("" if later else wrong()) or ""
        result.recovered = not later and not result.why
        if result.recovered or time.time() > at + limit_s or scene.run.process.poll() is not None:
            break
        pause(0.1)
    if result.recovered:
        back = [_first(scene, group, before[group], at) for group in blow.hit]
        result.recovery_s = round(max(back) - at if back else time.time() - at, 3)
    for _, act in later:
        act()


def _first(scene: Scene, group: int, attempt: int, at: float) -> float:
    """Return when a group first committed in a later attempt."""
    return min(s["time"] for s in scene.run.steps(group) if s["time"] > at and s["attempt"] > attempt)


def since_the_last(scene: Scene) -> list[str]:
    """Return a sentence for each end of a group since the last fault was judged, which that one does not explain."""
    new, scene.judged = scene.run.events[scene.judged :], len(scene.run.events)
    ended = [e for e in new if e["event"] == "step_exited" and e["group"] is not None and e["cause"] != "ok"]
    unexplained = [f"after the last fault: {_cause(e)}" for e in ended if e["group"] not in scene.explained]
    return list(dict.fromkeys([*unexplained, *crashed(new)]))


def _judge(scene: Scene, blow: Blow, before: dict[int, int], at: float, result: Result) -> None:
    new, scene.judged = scene.run.events[scene.judged :], len(scene.run.events)
    scene.explained = blow.hit | blow.may
    result.wrong += crashed(new)
    for group, attempt in scene.attempts().items():
        explained = blow.attempts if group in blow.hit else 1 if group in blow.may else 0
        ended = [e for e in new if e["event"] == "step_exited" and e["group"] == group]
        if attempt - before[group] > explained:
            why = "; ".join(dict.fromkeys(_cause(e) for e in ended))
            result.extra.append(f"{attempt - before[group]} new attempts of group {group}: {why}")
        elif explained:
            adopted = {e["attempt"] for e in scene.run.named("step_adopted", group=group)}
            later = {e["attempt"]: e["cause"] for e in scene.run.named("cause_corrected", group=group)}
            for e in ended:  # only srun reports a scancel, and the srun of an adopted step is not heard
                cause = later.get(e["attempt"], e["cause"])
                unheard = cause == "killed" and e["attempt"] in adopted and "cancelled" in blow.causes
                result.wrong += [] if cause in blow.causes or unheard else [_cause(e)]
            if attempt > before[group] and before[group] not in [e["attempt"] for e in ended]:
                result.wrong.append(f"group {group}: nothing tells why attempt {before[group]} has ended")
    if result.recovered:

        def tidy() -> bool:
            result.left = scene.strays()
            return not result.left

        wait_for(tidy, TIDY_S)  # a Lighthouse that hands over ends a moment after its step
        innocent = set(scene.groups) - blow.hit - blow.may
        pauses = [_pause(scene, group, at) for group in innocent]
        result.gap_s = round(max(pauses), 3) if pauses else None
    steps = [step for group in scene.groups for rank in range(2) for step in scene.run.steps(group, rank)]
    verdict = judge(scene.run.events, steps)
    result.steps, result.died_with = verdict.problems, len(verdict.died_with)


def _cause(event: dict[str, object]) -> str:
    return f"group {event['group']} ended of {event['cause']}: {str(event['error'])[:120]}"


def _pause(scene: Scene, group: int, at: float) -> float:
    times = [float(s["time"]) for s in scene.run.steps(group) if s["time"] > at - 5]
    return max((b - a for a, b in itertools.pairwise(times) if b > at), default=0.0)


def end(scene: Scene) -> str:
    """Let a run end; return what went wrong, "" for nothing."""
    scene.run.end_soon()
    try:
        code = scene.run.process.wait(90)
    except subprocess.TimeoutExpired:
        return f"it does not end: {scene.run.text[-1000:]}"
    if code:
        return f"exit code {code}: {scene.run.text[-1000:]}"
    if late := since_the_last(scene):
        return "; ".join(late)
    if not wait_for(lambda: not scene.run.processes(), TIDY_S):
        return f"processes are left: {scene.run.processes()}"
    queue = ["squeue", "--noheader", "--format=%i %T"]
    if not wait_for(lambda: not scene.cluster.run(queue).split(), 3 * TIDY_S):
        return f"jobs are left: {scene.cluster.run(queue)}"
    try:
        scene.run.check_invariants()
    except AssertionError as error:
        return f"the journal: {error}"
    weights = set(scene.run.weights().values())
    return "" if len(weights) == 1 else f"the groups end with different weights: {scene.run.weights()}"


def table(results: Sequence[Result]) -> str:
    """Return the table of results, one row per kind."""
    head = f"{'kind':<22}{'faults':>7}{'back':>6}{'extra':>7}{'causes':>8}{'left':>6}{'steps':>7}"
    lines = [f"{'':<63}{'recovery, s':^21}{'others’ pause, s':^21}"]
    lines.append(head + f"{'median':>7}{'p95':>7}{'max':>7}" * 2)
    kinds = [(name, [r for r in results if r.kind == name]) for name in KINDS]
    for name, of in [*kinds, ("all kinds", list(results))]:
        if of:
            counts = [len(of), sum(r.recovered for r in of)]
            counts += [sum(bool(getattr(r, field)) for r in of) for field in ("extra", "wrong", "left", "steps")]
            row = "".join(f"{n:>{width}}" for n, width in zip(counts, (7, 6, 7, 8, 6, 7), strict=True))
            lines.append(f"{name:<22}{row}{_spread([r.recovery_s for r in of])}{_spread([r.gap_s for r in of])}")
    loads = [r.load for r in results] or [0.0]
    died = f"{sum(r.died_with for r in results)} steps were taken again because all who had committed them died"
    lines.append(f"load {statistics.median(loads):.1f} (max {max(loads):.1f}) on {os.cpu_count()} cores; {died}")
    return "\n".join(lines)


def _spread(values: Sequence[float | None]) -> str:
    known = sorted(v for v in values if v is not None)
    if not known:
        return f"{'-':>7}" * 3
    p95 = known[min(len(known) - 1, int(0.95 * len(known)))]
    return f"{statistics.median(known):>7.2f}{p95:>7.2f}{known[-1]:>7.2f}"


def campaigns(args: argparse.Namespace, out: Path) -> list[Campaign]:
    """Divide the faults among the modes, and those of a mode into campaigns of PER_RUN."""
    if args.short:
        shares = dict(SHORT)
    else:
        base, more = divmod(len(args.only) * len(args.modes) if args.once else args.faults, len(args.modes))
        shares = {mode: base + (i < more) for i, mode in enumerate(args.modes)}
    found = []
    for mode, count in shares.items():
        for first in range(args.first, args.first + count, PER_RUN):
            numbers = range(first, min(first + PER_RUN, args.first + count))
            found.append(Campaign(mode, numbers, args, out))
    return found


def main(words: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--short", action="store_true", help=f"for CI: {SHORT}")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=[m for m in MODES if not MODES[m].hosts])
    parser.add_argument("--hosts", action="store_const", dest="modes", const=[m for m in MODES if MODES[m].hosts])
    parser.add_argument("--only", "--kinds", nargs="+", choices=list(KINDS), default=[], metavar="KIND")
    parser.add_argument("--once", action="store_true", help="each of these kinds once, in this order")
    parser.add_argument("--light", action="store_true", help="workers without torch, which save no checkpoints")
    parser.add_argument("--parallel", type=int, default=1, help="clusters side by side")
    parser.add_argument("--out", type=Path, help="where faults.jsonl and the failures go; default: a new folder")
    parser.add_argument("--slurm", default="", help="root folder of another Debian, whose Slurm is used")
    args = parser.parse_args(words)
    if args.once and not args.only:
        parser.error("--once needs --kinds")
    if args.slurm:
        again = [sys.executable, __file__, *(words if words is not None else sys.argv[1:]), "--slurm="]
        return subprocess.run(entered(Path(args.slurm), again, Path(tempfile.gettempdir())), check=False).returncode
    out = (args.out or Path(tempfile.mkdtemp(prefix="chaos-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ENDED.set())  # every campaign then stops its clusters
    began = time.monotonic()
    every = campaigns(args, out)
    with suppress(KeyboardInterrupt), scratch() as clusters, ThreadPoolExecutor(args.parallel) as pool:
        list(pool.map(lambda campaign: campaign.go(clusters), every))
    results = [result for campaign in every for result in campaign.results]
    ends = [wrong for campaign in every for wrong in campaign.ends]
    print(table(results), *ends, sep="\n")
    took = time.monotonic() - began
    print(
        f"{len(results)} faults in {took:.0f} s, {took / max(1, len(results)):.1f} s each; seed {args.seed}; see {out}"
    )
    return 130 if ENDED.is_set() else int(bool(ends) or any(result.bad for result in results))


if __name__ == "__main__":
    sys.exit(main())
