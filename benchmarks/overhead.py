"""What does ftslurm cost a training in which nothing fails: in time for each step, until the first step, and in CPU?

    python benchmarks/overhead.py                      5 blocks of 20 s for each arm and pace, about 28 minutes
    python benchmarks/overhead.py --n 1 --seconds 5    a first look

Three groups of one worker train tests/scripts/toy.py on a throwaway Slurm of three nodes, started in three ways:

    srun       by hand: sbatch, torchft's Lighthouse, one srun for each group; the script's own process hosts its store
    torchrun   the same, with torchrun between srun and the script, as in torchft's examples
    ftslurm    `ftslurm run`

In each block every arm runs once, in changing order, at three paces: steps that only compute (`busy`), steps that
wait for their quorum and then sleep 0.1 s as if a GPU worked (`0.1 s`), and steps that sleep while the quorum is
sought, as torchft's Manager does by default (`0.1 s beside the quorum`). A ratio compares an arm with `srun` (start) or
`torchrun` (step) of the same block. The interval after a ratio holds its median with 95 % confidence (bootstrap over
the blocks).

Writes benchmarks/results/overhead.{json,md,svg}, after every block.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import results
from process_cost import cpu_s, stat

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import Cluster, scratch
from harness import PATIENCE_S, SCRIPTS, Backend, Run

import ftslurm

GROUPS = 3
PACES: dict[str, dict[str, object]] = {  # name -> arguments of toy.py
    "busy": {"step-time": 0},
    "0.1 s": {"step-time": 0.1},
    "0.1 s beside the quorum": {"step-time": 0.1, "beside": True},
}
ARMS = ("srun", "torchrun", "ftslurm")
SETTLE_S = 1.0  # after the first step of all groups, before anything is counted
ABOUT_S = 16.0  # beside the measured seconds: start and end of one run, on a quiet machine
PORT = 29700  # the first one of the runs by hand; none is used twice, it may be in TIME_WAIT
# Hosts the store in the script's process: nothing can start faster by hand.
HOSTED = (
    "import os, runpy, sys, torch.distributed as d;"
    "s = d.TCPStore('127.0.0.1', int(os.environ['MASTER_PORT']), is_master=True, wait_for_workers=False);"
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass
class Sample:
    """One run: seconds from its submission to the first step of all groups, seconds of a step, CPU ms of a step."""

    arm: str
    pace: str
    start_s: float
    step_s: float
    steps: int
    cpu_ms: dict[str, float] = field(default_factory=dict)


def by_hand(cluster: Cluster, folder: Path, pace: str, seconds: float, torchrun: bool, port: int) -> Sample:
    """Run the training without ftslurm."""
    steps = folder / "steps"
    settings = [f"--{name}" if value is True else f"--{name}={value}" for name, value in PACES[pace].items()]
    script = [str(SCRIPTS / "toy.py"), "--open-end", *settings, f"--steps-file={steps}"]
    (folder / "job.sh").write_text(job_script(script, torchrun, port))
    began = time.time()
    command = ["sbatch", "--wait", f"--nodes={GROUPS}", "--ntasks-per-node=1", "--cpus-per-task=1"]
    command += [f"--output={folder}/job.log", str(folder / "job.sh")]
    job = subprocess.Popen(command, env=cluster.environ() | {"TOY_DDP": "0"}, stdout=subprocess.DEVNULL)
    files = [Path(f"{steps}-{group}-0") for group in range(GROUPS)]

    def alive() -> None:
        assert job.poll() is None, (folder / "job.log").read_text()

    start_s = first_steps(files, alive) - began
    time.sleep(SETTLE_S + seconds)
    step_s, count = pace_of(files[0], seconds)
    end(steps, files)
    assert job.wait(PATIENCE_S) == 0, (folder / "job.log").read_text()
    return Sample("torchrun" if torchrun else "srun", pace, start_s, step_s, count)


def job_script(script: Sequence[str], torchrun: bool, port: int) -> str:
    """Return the batch script of a run by hand."""
    lines = [
        "#!/bin/bash",
        "export OMP_NUM_THREADS=1 RUST_LOG=error NUM_REPLICA_GROUPS=3 MASTER_ADDR=127.0.0.1",
        "export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 TORCHELASTIC_USE_AGENT_STORE=True",
        f"export TORCHFT_LIGHTHOUSE=http://127.0.0.1:{port}",
        f"{shlex.quote(str(Path(sys.executable).parent / 'torchft_lighthouse'))} --bind 127.0.0.1:{port} "
        f"--min_replicas {GROUPS} --join_timeout_ms 10000 --quorum_tick_ms 20 &",
        "lighthouse=$!",
        'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))',
    ]
    for group in range(GROUPS):
        own = port + 1 + group
        if torchrun:
            start = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1"]
            start += ["--master-addr=127.0.0.1", f"--master-port={own}", *script]
        else:
            start = [sys.executable, "-c", HOSTED, *script]
        srun = f"srun --overlap --mem=0 --cpu-bind=none --nodes=1 --ntasks=1 --nodelist=${{nodes[{group}]}}"
        lines.append(f"REPLICA_GROUP_ID={group} MASTER_PORT={own} {srun} {shlex.join(start)} & groups[{group}]=$!")
    return "\n".join([*lines, 'wait "${groups[@]}"', "code=$?", "kill $lighthouse", "exit $code", ""])


def with_ftslurm(backend: Backend, pace: str, seconds: float) -> Sample:
    """Run the training with ftslurm; also measure the CPU time of its own processes."""
    began = time.time()
    run = backend.start(f"groups.count={GROUPS}", f"groups.min={GROUPS}", args={"open-end": True} | PACES[pace])
    files = [Path(f"{run.steps_file}-{group}-0") for group in range(GROUPS)]

    def alive() -> None:
        assert run.process.poll() is None, run.text

    start_s = first_steps(files, alive) - began
    time.sleep(SETTLE_S)
    before, at = own_cpu_s(run), steps_in(files[0])
    time.sleep(seconds)
    spent = {name: value - before[name] for name, value in own_cpu_s(run).items()}
    count = steps_in(files[0]) - at
    step_s, steps = pace_of(files[0], seconds)
    run.end_soon()
    run.finish().check_deaths()
    return Sample("ftslurm", pace, start_s, step_s, steps, {name: 1e3 * value / count for name, value in spent.items()})


def own_cpu_s(run: Run) -> dict[str, float]:
    """Return the CPU seconds of the controller, of the Lighthouse, and of one guard (the mean of all)."""
    controller = int(str(run.named("run_started")[-1]["pid"]))
    guards, lighthouses = list[int](), list[int]()
    found = run.processes()
    for pid in found:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"srun" in line[0]:
            continue
        (guards if b"ftslurm.worker" in line else lighthouses if b"ftslurm.lighthouse" in line else []).append(pid)
    parents = {pid: int(stat(pid)[1]) for pid in guards}
    guards = [pid for pid, parent in parents.items() if pid in parents.values() and parent not in parents]
    assert len(guards) == GROUPS, guards
    return {
        "controller": cpu_s(controller),
        "Lighthouse": sum(map(cpu_s, lighthouses)),
        "guard": statistics.mean(map(cpu_s, guards)),
    }


def first_steps(files: Sequence[Path], alive: object) -> float:
    """Wait until every group has committed a step; return when the last one did."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(path.exists() and b"\n" in path.read_bytes() for path in files):
        assert callable(alive)
        alive()
        assert time.monotonic() < deadline, f"no first step within {PATIENCE_S} s"
        time.sleep(0.02)
    return max(times(path)[0] for path in files)


def times(path: Path) -> list[float]:
    """Return the times of the steps that a group has committed."""
    return [float(json.loads(line)["time"]) for line in path.read_text().rpartition("\n")[0].splitlines()]


def steps_in(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def pace_of(path: Path, seconds: float) -> tuple[float, int]:
    """Return the mean seconds of a step within the last so many seconds, and how many steps that were."""
    seen = times(path)
    seen = [at for at in seen if at >= seen[-1] - seconds]
    return (seen[-1] - seen[0]) / (len(seen) - 1), len(seen) - 1


def end(steps: Path, files: Sequence[Path]) -> None:
    """End an open-ended training in some steps."""
    part = Path(f"{steps}-end.part")
    part.write_text(str(max(steps_in(path) for path in files) + 50))
    part.rename(f"{steps}-end")


def ratios(samples: Sequence[Sample], pace: str | None, arm: str, base: str, what: str) -> list[float]:
    """Return the ratio of an arm to another one in each block; pace None: the paces are blocks of their own."""
    out = []
    for one in PACES if pace is None else (pace,):
        mine = [getattr(sample, what) for sample in samples if (sample.arm, sample.pace) == (arm, one)]
        theirs = [getattr(sample, what) for sample in samples if (sample.arm, sample.pace) == (base, one)]
        out += [a / b for a, b in zip(mine, theirs, strict=False)]
    return out


def interval(values: Sequence[float]) -> str:
    """Return the median of ratios, and the interval that holds it with 95 % confidence (bootstrap)."""
    dice = random.Random(1)  # noqa: S311 not a secret
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(2000))
    return f"{statistics.median(values):.3f} ({medians[50]:.3f}-{medians[-50]:.3f})"


def save(samples: Sequence[Sample], conditions: dict[str, object], options: argparse.Namespace) -> str:
    """Write the results; return the table."""
    header = ["", *ARMS, "ftslurm / torchrun", "ftslurm / srun"]
    rows = []
    for pace in PACES:
        steps = [[1e3 * s.step_s for s in samples if (s.arm, s.pace) == (arm, pace)] for arm in ARMS]
        cells = [interval(ratios(samples, pace, "ftslurm", base, "step_s")) for base in ("torchrun", "srun")]
        rows.append([f"a step, {pace} (ms)", *(results.spread(values) for values in steps), *cells])
    starts = [[s.start_s for s in samples if s.arm == arm] for arm in ARMS]
    cells = [interval(ratios(samples, None, "ftslurm", base, "start_s")) for base in ("torchrun", "srun")]
    rows.append(["submission to first step (s)", *(results.spread(values) for values in starts), *cells])
    for name in ("guard", "controller", "Lighthouse"):
        for pace in PACES:
            spent = [s.cpu_ms[name] for s in samples if s.arm == "ftslurm" and s.pace == pace]
            rows.append([f"CPU of the {name} in a step, {pace} (ms)", "", "", results.spread(spent, ".3f"), "", ""])
    about = f"{results.told(conditions)}. {options.n} blocks, {options.seconds:g} s of steps in each run.\n"
    text = f"{results.table(header, rows)}\n{about}"
    path = results.FOLDER / "overhead.json"
    results.save(path, {"conditions": conditions, "samples": [asdict(sample) for sample in samples]})
    path.with_suffix(".md").write_text(text)
    bars = [
        results.Bar(f"{what}, {arm}", tuple(ratios(samples, pace, arm, "srun", field)), ours=arm == "ftslurm")
        for what, pace, field in (
            *((f"step {pace}", pace, "step_s") for pace in PACES),
            ("start", None, "start_s"),
        )
        for arm in ARMS[1:]
    ]
    scale = max(1.0, *(value for bar in bars for value in bar.values)) * 1.05
    picture = results.bars("What ftslurm costs when nothing fails", "time, as a multiple of srun by hand", scale, bars)
    path.with_suffix(".svg").write_text(picture)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", "--n", type=int, default=5, help="blocks")
    parser.add_argument("--seconds", type=float, default=20.0, help="of steps in each run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is stopped
    about_s = options.n * len(ARMS) * len(PACES) * (options.seconds + SETTLE_S + ABOUT_S)
    print(f"about {about_s / 60:.0f} min on a quiet machine of 4 cores; load now {os.getloadavg()[0]:.1f}", flush=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    subprocess.run([sys.executable, "-m", "compileall", "-q", Path(ftslurm.__file__).parent], check=True)
    conditions, samples = results.conditions(), list[Sample]()
    with scratch() as folder, tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as files:
        cluster = Cluster.start(folder / "bench", nodes=GROUPS)
        backend = Backend("slurm", cluster.env, Path(files))
        try:
            for block in range(options.n):
                for pace in PACES:
                    for arm in (*ARMS[block % len(ARMS) :], *ARMS[: block % len(ARMS)]):
                        samples.append(measure(arm, cluster, backend, pace, options.seconds, len(samples)))
                        cluster.clear()
                        print(samples[-1], flush=True)
                text = save(samples, conditions, options)
        finally:
            cluster.stop()
    print(text)


def measure(arm: str, cluster: Cluster, backend: Backend, pace: str, seconds: float, number: int) -> Sample:
    """Run one arm."""
    if arm == "ftslurm":
        return with_ftslurm(backend, pace, seconds)
    folder = backend.tmp_path / f"hand{number}"
    folder.mkdir()
    return by_hand(cluster, folder, pace, seconds, arm == "torchrun", PORT + 10 * number)


if __name__ == "__main__":
    main()
