"""Runs of many real groups on as many fake nodes: what the controller, the Lighthouse and Slurm need, and kills.

scale.py calls `measure`. Every group is a Slurm step of its own with its guard; what trains is light_worker.py, because
torch takes 150 MB for each process. With `torch=True` it is tests/scripts/toy.py, with torch and collectives.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster import Cluster, processes_in, scratch
from harness import Backend, Run
from process_cost import cpu_s, stat

STEP_S = 1.0
TRAINING = {"open-end": True, "step-time": STEP_S, "timeout": 60}
ENDLESS = ("restart.max_per_group=100000", "restart.backoff_s=0")
JOIN_S = 900.0  # limit for the start of all groups, and for their return
Row = dict[str, float]


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far, and resident memory, threads and file descriptors now, of some processes together."""

    cpu_s: float = 0.0
    mb: float = 0.0
    threads: int = 0
    files: int = 0
    processes: int = 0

    def __add__(self, other: Usage) -> Usage:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Usage(*(a + b for a, b in pairs))


def usage(pid: int) -> Usage:
    """Return what a process uses; memory is its proportional share of what is resident."""
    try:
        cpu, threads = cpu_s(pid), int(stat(pid)[17])
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        share = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
    except (OSError, StopIteration):  # it has ended
        return Usage()
    return Usage(cpu, share, threads, files, 1)


def all_usage(run: Run, cluster: Cluster) -> dict[str, Usage]:
    """Return the usage of the controller, of the Lighthouse with its guard, of all workers, sruns and of slurmctld."""
    controller = int(str(run.named("run_started")[-1]["pid"]))
    found = {"controller": usage(controller)}
    for pid, name in (run.processes() | processes_in(cluster.folder)).items():
        if pid != controller and (kind := _kind(pid, name)):
            found[kind] = found.get(kind, Usage()) + usage(pid)
    return found


def _kind(pid: int, name: str) -> str | None:
    if name in ("srun", "slurmctld", "slurmd"):
        return name
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    if name.startswith("slurmstepd") or b"slurmstepd:" in words[:12]:
        return "slurmstepd"
    if b"ftslurm.lighthouse" in words:
        return "Lighthouse"
    return "guards and workers" if b"ftslurm.worker" in words else None


def measure(groups: int, kills: int, calm_s: float, torch: bool = False) -> dict[str, Row]:
    """Return the rows of a run with so many groups: start, calm, and kills of one, eight and all but one."""
    with scratch() as folder, tempfile.TemporaryDirectory() as tmp:
        cluster = Cluster.start(folder / "c", nodes=groups)
        backend = Backend("slurm", cluster.env, Path(tmp), light=not torch)
        began = time.time()
        run = backend.start(f"groups.count={groups}", *ENDLESS, args=TRAINING)
        try:
            rows = {"start": _started(run, cluster, groups, began)}
            time.sleep(5.0)
            rows["calm"] = _calm(run, cluster, calm_s)
            for name, victims in (("1", 1), ("8", min(8, groups - 1)), (f"all but one ({groups - 1})", groups - 1)):
                found = [_kill(run, groups, range(1, victims + 1)) for _ in range(kills)]
                rows[f"kill {name}"] = {key: statistics.median(one[key] for one in found) for key in found[0]}
        finally:
            run.abandon()
            cluster.stop()
    return rows


def _started(run: Run, cluster: Cluster, groups: int, began: float) -> Row:
    """Wait until every group has committed a step; return how long it took."""
    run.until(lambda: len({e["group"] for e in run.named("group_joined")}) == groups, "all groups joined", JOIN_S)
    launched = [float(str(e["time"])) for e in run.named("step_launched") if e["group"] is not None]
    joined = [float(str(e["time"])) for e in run.named("group_joined")]
    return {
        "launch of the first to launch of the last, s": max(launched) - min(launched),
        "all groups have taken a step, s after submission": max(joined) - began,
        "controller, CPU s": all_usage(run, cluster)["controller"].cpu_s,
    }


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _calm(run: Run, cluster: Cluster, seconds: float) -> Row:
    """Return what training without faults costs."""
    files = [run.dir / "events.jsonl", run.dir / "progress.jsonl"]
    size, before, began = _size(files), all_usage(run, cluster), time.time()
    time.sleep(seconds)
    span, after = time.time() - began, all_usage(run, cluster)
    row: Row = {}
    for kind in sorted(after):
        row[f"{kind}, CPU %"] = 100 * (after[kind].cpu_s - before.get(kind, Usage()).cpu_s) / span
        row[f"{kind}, MB"] = after[kind].mb
    row["controller, threads"] = after["controller"].threads
    row["controller, open files"] = after["controller"].files
    row["Lighthouse, open files"] = after["Lighthouse"].files
    row["srun processes"] = after["srun"].processes
    row["journal, MB an hour"] = (_size(files) - size) / span * 3600 / 1e6
    row["status, CPU s"] = _status(run)
    row["steps a second"] = _pace(run, began, began + span)
    return row


def _status(run: Run) -> float:
    """Return the CPU time of `ftslurm status`."""
    before = os.times()
    code, text = run.ask("status")
    after = os.times()
    assert code == 0, text
    return after.children_user + after.children_system - before.children_user - before.children_system


def _pace(run: Run, since: float, until: float) -> float:
    steps = [step for step in run.steps(0) if since <= step["time"] < until]
    return len(steps) / (until - since)


def _kill(run: Run, groups: int, victims: Sequence[int]) -> Row:
    """Kill the workers of some groups at once; return when they were noticed and back, and how long others waited."""
    attempts = {group: _attempt(run, group) for group in victims}
    for group in range(groups):
        _until_steps(run, group, _attempt(run, group))
    pids = [run.pid(group, 0, attempts[group]) for group in victims]
    controller = int(str(run.named("run_started")[-1]["pid"]))
    cpu, at = usage(controller).cpu_s, time.time()
    killed = {}
    for group, pid in zip(victims, pids, strict=True):
        killed[group] = time.time()
        os.kill(pid, 9)
    for group in victims:
        joined = partial(run.named, "group_joined", group=group, attempt=attempts[group] + 1)
        run.until(joined, "all are back", JOIN_S)
    cost = usage(controller).cpu_s - cpu
    time.sleep(2 * STEP_S)
    noticed = [_noticed(run, group, attempts[group]) - killed[group] for group in victims]
    back = [_first(run, group, attempts[group] + 1) - killed[group] for group in victims]
    survivor = run.longest_gap(groups - 1 if len(victims) < groups - 1 else 0, at - STEP_S)
    return {
        "noticed, median s": statistics.median(noticed),
        "noticed, last s": max(noticed),
        "back, median s": statistics.median(back),
        "back, last s": max(back),
        "longest gap of a survivor, s": survivor,
        "controller, CPU s": cost,
        "restarted beside": float(_others(run, victims, at)),
    }


def _others(run: Run, victims: Sequence[int], at: float) -> int:
    """Return how many groups that were not killed have been launched again since then."""
    again = run.named("step_launched")
    return sum(e["group"] is not None and e["group"] not in victims and float(str(e["time"])) > at for e in again)


def _attempt(run: Run, group: int) -> int:
    return max(int(str(e["attempt"])) for e in run.named("step_launched", group=group))


def _until_steps(run: Run, group: int, attempt: int) -> None:
    """Wait until a group has taken a step in its present attempt."""
    there: Callable[[], bool] = lambda: any(step["attempt"] == attempt for step in run.steps(group))  # noqa: E731
    run.until(there, f"a step of group {group} attempt {attempt}", JOIN_S)


def _noticed(run: Run, group: int, attempt: int) -> float:
    return float(str(run.named("step_exited", group=group, attempt=attempt)[0]["noticed"]))


def _first(run: Run, group: int, attempt: int) -> float:
    return min(step["time"] for step in run.steps(group) if step["attempt"] == attempt)


# --- srun and slurmctld -----------------------------------------------------------------------------------------------


def measure_sruns(sizes: Sequence[int], nodes: int = 16, tries: int = 20) -> dict[int, Row]:
    """Return what one more srun costs while so many steps run: time, and CPU time of slurmctld."""
    rows: dict[int, Row] = {}
    with scratch() as folder:
        cluster = Cluster.start(folder / "c", nodes=nodes)
        try:
            submit = ["sbatch", "--parsable", f"-N{nodes}", "--no-kill", "--output=/dev/null", "--wrap=sleep 10000"]
            job = cluster.run(submit).strip()
            control = cluster._daemons["slurmctld"].pid
            running: list[subprocess.Popen[bytes]] = []
            for size in sizes:
                rows[size] = _sruns(cluster, job, control, running, size, tries)
            for process in running:
                process.kill()
                process.wait()
        finally:
            cluster.stop()
    return rows


def _sruns(
    cluster: Cluster, job: str, control: int, running: list[subprocess.Popen[bytes]], size: int, tries: int
) -> Row:
    env: Mapping[str, str] = cluster.environ() | {"SLURM_JOB_ID": job}
    line = ["srun", "--overlap", "--mem=0", "--cpu-bind=none", "-N1", "-n1"]
    before, began = usage(control), time.time()
    new = size - len(running)
    while len(running) < size:
        node = cluster.nodes[len(running) % len(cluster.nodes)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen([*line, "-w", node, "sleep", "10000"], env=env, **quiet))  # type: ignore[call-overload]
    shown = ["squeue", "--steps", "--noheader", "--format=%i"]
    while len([step for step in cluster.run(shown).split() if step.rpartition(".")[2].isdigit()]) < size:
        time.sleep(0.1)
    up_s, up = time.time() - began, usage(control)
    time.sleep(2.0)
    took, start = [], usage(control)
    for _ in range(tries):
        at = time.time()
        subprocess.run([*line, "-w", cluster.nodes[0], "true"], env=env, capture_output=True, check=True)
        took.append(time.time() - at)
    end, asked = usage(control), time.time()
    cluster.run(shown)
    return {
        "all up, s": up_s,
        "slurmctld, CPU ms for each of them": 1000 * (up.cpu_s - before.cpu_s) / new if new else 0.0,
        "one more srun, median ms": 1000 * statistics.median(took),
        "one more srun, slowest ms": 1000 * max(took),
        "slurmctld, CPU ms for it": 1000 * (end.cpu_s - start.cpu_s) / tries,
        "squeue --steps, ms": 1000 * (time.time() - asked),
        "slurmctld, MB": end.mb,
    }
