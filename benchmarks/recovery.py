"""How long does a failed group take to come back, and how long do the others wait?

    python benchmarks/recovery.py                     on this machine, medians of 10
    python benchmarks/recovery.py --cluster slurm     on a throwaway 10-node Slurm started for it; also loses nodes

Groups of one worker train tests/scripts/toy.py with 0.1 s of sleep a step. In one run per configuration, `kill -9` hits
group 1 repeatedly: default settings (a cold relaunch), a warm standby, torchft's Lighthouse at our timing, and, the
baseline, torchft's Lighthouse at its default timing (5 s of silence until a group counts as dead). A step that has
begun at the kill is lost and repeated, so the survivors' pause is two steps and what ftslurm adds; in the last column
the 0.1 s pass between steps, as when data is loaded. The second baseline is the bare script, started by hand beside
the kills, from `python toy.py` to its first committed step.

Then four groups are killed at once. That costs more than one kill only as far as their processes share the cores, so
four bare scripts are started at once for comparison. Warm standbys need hardly any CPU: the rest is the controller's
share. The claim is the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import Cluster, scratch
from harness import SCRIPTS, Backend, Run

ENDLESS = ("restart.max_per_group=100000", "restart.backoff_s=0")  # the restart budget must not end the run
TORCHFT = ("lighthouse=torchft",)
DEFAULT_TIMING = (
    *TORCHFT,
    "lighthouse.heartbeat_timeout_ms=5000",
    "lighthouse.join_timeout_ms=60000",
    "lighthouse.quorum_tick_ms=100",
)
BETWEEN = "standby, idle"  # the 0.1 s pass between steps, as when data is loaded: a kill seldom hits a step
ARMS = {
    "as it is": (),
    "standby=one": ("standby=one", "cluster.spare_nodes=1"),
    "lighthouse=torchft": TORCHFT,
    "torchft's timing": DEFAULT_TIMING,
    BETWEEN: ("standby=one", "cluster.spare_nodes=1"),
}
STEP_S = 0.1
LOST_AFTER_S = 4.0
Row = dict[str, float]


def kills(backend: Backend, n: int, *overrides: str, between: bool = False) -> list[Row]:
    """Kill group 1 of a run of three n times; return the seconds from each kill, and the controller's cost."""
    run = _training(backend, 3, *overrides, between=between)
    controller = int(str(run.wait_for("run_started")["pid"]))
    rows = []
    for attempt in range(1, n + 1):
        _calm(run, standbys="standby=one" in overrides)
        cpu, wall = _cpu_seconds(controller), time.monotonic()
        time.sleep(1.0)
        share = (_cpu_seconds(controller) - cpu) / (time.monotonic() - wall)
        at = run.kill(group=1)
        run.wait_until_back(1, attempt=attempt)
        time.sleep(1.5)
        rows.append(_row(run, 1, attempt, at, survivors=(0, 2)))
        rows[-1] |= {"controller CPU %": 100 * share, "controller MB": _resident_mb(controller)}
    _end(run, survivors={0, 2}, returned={1})
    return rows


def four_at_once(backend: Backend, n: int, *overrides: str) -> list[Row]:
    """Kill group 1 of a run of five, then groups 1 to 4 together, n times; return the times until all are back."""
    run = _training(backend, 5, *overrides)
    rows = []
    attempts = dict.fromkeys(range(1, 5), 0)
    for _ in range(n):
        row = {}
        for name, victims in (("one", [1]), ("four", [1, 2, 3, 4])):
            _calm(run, standbys=4 * any("standby" in word for word in overrides))
            at = time.time()
            for group in victims:
                run.kill(group)
                attempts[group] += 1
            for group in victims:
                run.wait_until_back(group, attempt=attempts[group])
            time.sleep(0.5)
            row[name] = max(_first_step(run, group, attempts[group]) for group in victims) - at
        rows.append(row)
    _end(run, survivors={0}, returned={1, 2, 3, 4})
    return rows


def node_losses(cluster: Cluster, backend: Backend, n: int) -> list[Row]:
    """Lose a node (slurmd, slurmstepds and tasks) n times, with a warm standby on a spare node."""
    rows = []
    for _ in range(n):
        run = _training(backend, 3, "cluster.spare_nodes=1", "standby=one", f"health.lost_after_s={LOST_AFTER_S}")
        _calm(run, standbys=1)
        lost = str(run.named("step_launched", group=1)[0]["nodes"][0])  # type: ignore[index]
        at = time.time()
        cluster.kill_node(lost)
        run.wait_until_back(1)
        time.sleep(1.0)
        rows.append(_row(run, 1, 1, at, survivors=(0, 2)))
        _end(run, survivors={0, 2}, returned={1})
        cluster.clear()
    return rows


def _training(backend: Backend, groups: int, *overrides: str, between: bool = False) -> Run:
    pace = {"step-time": 0.0, "pause": STEP_S} if between else {"step-time": STEP_S}
    run = backend.start(f"groups.count={groups}", *ENDLESS, *overrides, args={"open-end": True, **pace})
    run.wait_for_steps(5, groups)
    return run


def _calm(run: Run, standbys: int) -> None:
    """Wait until this many standbys are warm, and a second more for the last imports."""

    def warm() -> bool:
        taken = len([e for e in run.named("step_launched") if e["standby"]])
        ready = len([e for e in run.named("step_ready") if str(e["unit"]).startswith("standby")])
        return ready - taken >= standbys

    run.until(warm, "warm standbys")
    time.sleep(1.0)


def _row(run: Run, group: int, attempt: int, at: float, survivors: tuple[int, ...]) -> Row:
    (ended,) = run.named("step_exited", group=group, attempt=attempt - 1)
    back = _first_step(run, group, attempt)
    return {
        "notice": float(str(ended["noticed"])) - at,
        "step gone": float(str(ended["time"])) - at,
        "first committed step": back - at,
        "survivors' longest gap": max(_longest_gap(run, g, at) for g in survivors),
    }


def _first_step(run: Run, group: int, attempt: int) -> float:
    return min(s["time"] for s in run.steps(group) if s["attempt"] == attempt)


def _end(run: Run, survivors: set[int], returned: set[int]) -> None:
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors=survivors, returned=returned)


def _longest_gap(run: Run, group: int, at: float) -> float:
    times = [s["time"] for s in run.steps(group)]
    return max(b - a for a, b in itertools.pairwise(times) if at < b < at + 30)


def bare_start(folder: Path, count: int = 1) -> float:
    """Return the seconds from starting so many independent `python toy.py` at once to the last one's first step."""
    from ftslurm.lighthouse.stock import load_native

    with ExitStack() as stack:
        runs = []
        for _ in range(count):
            server = load_native().LighthouseServer(
                bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=1000
            )
            stack.callback(server.shutdown)
            url = f"http://127.0.0.1:{server.address().rsplit(':', 1)[1]}"
            env = {
                "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(stack.enter_context(_store())), "REPLICA_GROUP_ID": "0",
                "NUM_REPLICA_GROUPS": "1", "TORCHFT_LIGHTHOUSE": url, "OMP_NUM_THREADS": "1",
                "TORCHELASTIC_USE_AGENT_STORE": "True", "RUST_LOG": "error",
            }  # fmt: skip
            steps = folder / f"bare-{time.time_ns()}"
            argv = ["toy.py", "--steps=3", f"--step-time={STEP_S}", f"--steps-file={steps}"]
            runs.append(([sys.executable, str(SCRIPTS / argv[0]), *argv[1:]], os.environ | env, Path(f"{steps}-0-0")))
        began = time.time()
        started = [subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) for argv, env, _ in runs]
        for process in started:
            assert process.wait(120) == 0
        return max(float(json.loads(path.read_text().splitlines()[0])["time"]) for _, _, path in runs) - began


@contextmanager
def _store() -> Iterator[int]:
    """Host a TCPStore in its own process, as torchrun's agent does."""
    code = (
        "import sys, torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False);"
        "print(s.port, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield int(process.stdout.readline())
    process.communicate("")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--cluster", choices=["local", "slurm"], default="local")
    parser.add_argument("-n", type=int, default=10, help="repetitions of each")
    parser.add_argument("--only", choices=["kills", "four", "nodes"], nargs="+", help="some parts")
    args = parser.parse_args()
    with ExitStack() as stack:
        cluster = None
        if args.cluster == "slurm":
            cluster = Cluster.start(stack.enter_context(scratch()) / "bench", nodes=10)
            stack.callback(cluster.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
        backend = Backend(args.cluster, cluster.env if cluster else {}, folder)
        print(f"{args.cluster}, medians of {args.n} (min-max); steps sleep {STEP_S} s; {os.cpu_count()} cores")
        if not args.only or "kills" in args.only:
            report_kills(backend, args.n, folder)
        if not args.only or "four" in args.only:
            report_four(backend, args.n, folder)
        if cluster is not None and (not args.only or "nodes" in args.only):
            rows = node_losses(cluster, backend, args.n)
            print(
                f"seconds after a node has vanished (health.lost_after_s={LOST_AFTER_S:g}, a standby on a spare node)"
            )
            for key in rows[0]:
                print(f"  {key:<26}{_told([row[key] for row in rows])}")


def report_kills(backend: Backend, n: int, folder: Path) -> None:
    """Print the table of kill -9 for every configuration, and the ratios to the baselines."""
    arms, bare = {}, []
    for name, overrides in ARMS.items():
        print(f"{name}: {n} kills ...", file=sys.stderr, flush=True)
        arms[name] = kills(backend, n, *overrides, between=name == BETWEEN)
        bare += [bare_start(folder) for _ in range(-(-n // len(ARMS)))]
    print(f"{'seconds after kill -9 of 1 of 3 groups':<40}" + "".join(f"{name:>24}" for name in arms))
    for key in next(iter(arms.values()))[0]:
        print(f"  {key:<38}" + "".join(f"{_told([row[key] for row in rows]):>24}" for rows in arms.values()))
    alone = statistics.median(bare)
    print(f"bare `python toy.py` to its first committed step: {_told(bare)}")
    default = statistics.median(row["survivors' longest gap"] for row in arms["torchft's timing"])
    for name, rows in arms.items():
        back = statistics.median(row["first committed step"] for row in rows)
        gap = statistics.median(row["survivors' longest gap"] for row in rows)
        print(
            f"{name}: back in {back / alone:.2f} x the bare start; survivors' gap is a step + {gap - STEP_S:.2f} s, "
            f"{gap / default:.2f} x that with torchft's default timing"
        )


def report_four(backend: Backend, n: int, folder: Path) -> None:
    """Print the table of one group killed and of four at once."""
    for name, overrides in {"cold": (), "standby.count=4": ("standby.count=4", "cluster.spare_nodes=4")}.items():
        print(f"four at once, {name}: {n} times ...", file=sys.stderr, flush=True)
        rows = four_at_once(backend, n, *overrides)
        one, four = (statistics.median(row[key] for row in rows) for key in ("one", "four"))
        print(f"{name}: one killed, back in {one:.2f} s; four at once, all back in {four:.2f} s: {four / one:.2f} x")
    one, four = (statistics.median(bare_start(folder, count) for _ in range(n)) for count in (1, 4))
    print(
        f"bare `python toy.py`: one {one:.2f} s, four at once {four:.2f} s: {four / one:.2f} x is what the cores cost"
    )


def _told(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
