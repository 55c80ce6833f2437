"""How long does a killed group take to come back, and how long do the others wait?

    python benchmarks/recovery.py                     on this machine, medians of 5
    python benchmarks/recovery.py --cluster slurm     on a throwaway 4-node Slurm started for it (or --here: yours)

Three groups of one worker train tests/scripts/toy.py with 0.1 s of sleep a step; `kill -9` hits group 1: with ftslurm
as it is, and with its own Lighthouse. Beside them run two baselines: the same with torchft's default Lighthouse timing
(5 s of silence until a group counts as dead), and the bare script started by hand, from `python toy.py` to its first
committed step. What is claimed is the ratio.
"""

from __future__ import annotations

import argparse
import itertools
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

DEFAULT_TIMING = (
    "lighthouse.heartbeat_timeout_ms=5000",
    "lighthouse.join_timeout_ms=60000",
    "lighthouse.quorum_tick_ms=100",
)
ARMS = {"as it is": (), "lighthouse=ftslurm": ("lighthouse=ftslurm",), "torchft's timing": DEFAULT_TIMING}
STEPS, STEP_S, KILL_AT = 110, 0.1, 20


def one_kill(backend: Backend, *overrides: str) -> dict[str, float]:
    """One run with one kill; seconds from the kill, and what the controller cost while nothing happened."""
    run = backend.start("groups.count=3", *overrides, args={"steps": STEPS, "step-time": STEP_S})
    run.until(lambda: all(len(run.steps(g)) >= KILL_AT // 2 for g in range(3)), "training")
    controller = int(str(run.wait_for("run_started")["pid"]))
    cpu, wall = _cpu_seconds(controller), time.monotonic()
    run.until(lambda: len(run.steps(0)) >= KILL_AT, "training")
    time.sleep(1.0)
    share = (_cpu_seconds(controller) - cpu) / (time.monotonic() - wall)
    memory = _resident_mb(controller)
    at = run.kill(group=1)
    run.finish()
    run.check_training(STEPS, survivors={0, 2}, returned={1})
    (ended,) = run.named("step_exited", group=1, attempt=0)
    (ready,) = run.named("step_ready", group=1, attempt=1)
    first = min(s["time"] for s in run.steps(1) if s["attempt"] == 1)
    return {
        "notice": float(str(ended["noticed"])) - at,
        "step gone": float(str(ended["time"])) - at,
        "next attempt ready": float(str(ready["time"])) - at,
        "first committed step": first - at,
        "survivors' longest gap": max(_longest_gap(run, g, at) for g in (0, 2)),
        "controller CPU %": 100 * share,
        "controller MB": memory,
    }


def _longest_gap(run: Run, group: int, at: float) -> float:
    times = [s["time"] for s in run.steps(group)]
    return max(b - a for a, b in itertools.pairwise(times) if b > at)


def bare_start(folder: Path) -> float:
    """Seconds from `python toy.py`, started by hand, to its first committed step, alone in its quorum."""
    from ftslurm.lighthouse.stock import load_native

    with _store() as port:
        server = load_native().LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=1000
        )
        url = f"http://127.0.0.1:{server.address().rsplit(':', 1)[1]}"
        env = {
            "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "1", "TORCHFT_LIGHTHOUSE": url, "OMP_NUM_THREADS": "1",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "RUST_LOG": "error",
        }  # fmt: skip
        steps = folder / f"bare-{time.time_ns()}"
        argv = [sys.executable, str(SCRIPTS / "toy.py"), "--steps=3", f"--step-time={STEP_S}", f"--steps-file={steps}"]
        began = time.time()
        subprocess.run(argv, env=os.environ | env, check=True, capture_output=True, timeout=120)
        server.shutdown()
        import json

        return float(json.loads(Path(f"{steps}-0-0").read_text().splitlines()[0])["time"]) - began


@contextmanager
def _store() -> Iterator[int]:
    """A TCPStore in a process of its own, as torchrun's agent hosts it."""
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
    parser.add_argument("--here", action="store_true", help="with --cluster slurm: use the Slurm of this machine")
    parser.add_argument("-n", type=int, default=5)
    args = parser.parse_args()
    with ExitStack() as stack:
        environ: dict[str, str] = {}
        if args.cluster == "slurm" and not args.here:
            cluster = Cluster.start(stack.enter_context(scratch()) / "bench")
            stack.callback(cluster.stop)
            environ = cluster.env
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
        backend = Backend(args.cluster, environ, folder)
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
        bare = []
        for i in range(args.n):  # in turn, so that a machine whose speed drifts is as kind to the one as to the other
            print(f"round {i + 1} of {args.n} ...", file=sys.stderr, flush=True)
            for name, overrides in ARMS.items():
                rows[name].append(one_kill(backend, *overrides))
            bare.append(bare_start(folder))
    print(f"{args.cluster}, medians of {args.n} (and min-max of the first), step: {STEP_S} s asleep")
    print(f"seconds after kill -9 of one of 3 groups:{'':<10}" + "".join(f"{name:>20}" for name in ARMS))
    first, *_ = rows.values()
    for key in first[0]:
        values = [row[key] for row in first]
        spread = f"({min(values):.2f}-{max(values):.2f})"
        medians = "".join(f"{statistics.median(row[key] for row in arm):>20.2f}" for arm in rows.values())
        print(f"  {key:<26}{spread:>23}{medians}")
    middle = {name: {key: statistics.median(row[key] for row in arm) for key in arm[0]} for name, arm in rows.items()}
    tuned, own, default = (middle[name] for name in ARMS)
    alone = statistics.median(bare)
    print(f"bare `python toy.py` to its first committed step: {alone:.2f}")
    for name, arm in (("as it is", tuned), ("lighthouse=ftslurm", own)):
        back, gap = (
            arm["first committed step"] / alone,
            arm["survivors' longest gap"] / default["survivors' longest gap"],
        )
        print(f"{name}: coming back takes {back:.2f} x the bare start; survivors wait {gap:.2f} x as long as with")
        print("  torchft's default Lighthouse timing")


if __name__ == "__main__":
    main()
