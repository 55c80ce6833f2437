"""What a quorum and the heartbeats of many replica groups cost: our Lighthouse beside torchft's.

    python benchmarks/scale_lighthouse.py [--members 64 256 1000] [--steps 20]

Imitated managers (lighthouse_clients.py) send heartbeats and ask, all at once, for a quorum every --step-s seconds, as
groups do that have finished the same allreduce. For each number of members and each Lighthouse: the CPU time of the
Lighthouse's processes for a heartbeat and for a quorum of all, and what follows as a share of a core with heartbeats at
the interval and a quorum a second; its memory; and how long a group waits for its quorum after the last group has asked
(p50, p95 of all groups and steps). A quorum that lacks a member counts as a false eviction.

    ftslurm            as a run has it: behind its guard, a heartbeat a second (docs/lighthouse.md)
    ftslurm, no guard  the same without the guard, at an open port
    ftslurm, 100 ms    behind its guard, with torchft's ten heartbeats a second
    torchft            torchft's Rust Lighthouse and its defaults

On a busy machine the waiting times are those of the machine. CPU times are less disturbed; a generator that does not
get its turn sends fewer heartbeats, which is why the share of a core is computed from the cost of one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import results
from lighthouse_clients import Managers, member
from process_cost import cpu_s

from ftslurm.protocol import messages

RULES = {"min_replicas": 1, "join_timeout_ms": 60_000, "heartbeat_timeout_ms": 5000}
TORCHFT_INTERVAL_S = 0.1
ALONE = 5  # quorums with few heartbeats
STOCK = """
import sys, time
from torchft._torchft import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", **eval(sys.argv[1]))
print(server.address(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Arm:
    """One Lighthouse with one interval of heartbeats."""

    name: str
    kind: str
    interval_s: float
    guarded: bool = False


@dataclass(frozen=True)
class Result:
    """What one Lighthouse needed for this many members."""

    lighthouse: str
    members: int
    heartbeat_interval_s: float
    heartbeat_cpu_us: float
    quorum_cpu_ms: float  # one quorum of all, without heartbeats
    core_percent: float  # with heartbeats at the interval and a quorum a second
    memory_mb: float  # beyond the idle process
    p50_ms: float
    p95_ms: float
    false_evictions: int


def arms() -> list[Arm]:
    return [
        Arm("ftslurm", "ftslurm", 1.0, guarded=True),
        Arm("ftslurm, no guard", "ftslurm", 1.0),
        Arm("ftslurm, 100 ms", "ftslurm", TORCHFT_INTERVAL_S, guarded=True),
        Arm("torchft", "torchft", TORCHFT_INTERVAL_S),
    ]


@dataclass(frozen=True)
class Served:
    """A Lighthouse that runs."""

    url: str
    pid: int
    key: bytes = b""

    def cpu_s(self) -> float:
        """Return the CPU time of its processes."""
        return sum(map(cpu_s, self._processes()))

    def memory_mb(self) -> float:
        """Return the memory that its processes do not share with others."""
        total_kb = 0
        for pid in self._processes():
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_"):
                    total_kb += int(line.split()[1])
        return total_kb / 1000

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


@contextmanager
def serving(arm: Arm, members: int, folder: Path) -> Iterator[Served]:
    """Run a Lighthouse in processes of its own."""
    words, send, key = [sys.executable, "-c", STOCK, repr(RULES)], b"", b""
    environ = os.environ | {"RUST_LOG": "error"}
    if arm.kind == "ftslurm":
        settings = {"kind": "ftslurm", "attempt": 0, "highest": 0, "port": 0, "quorum_tick_ms": 20, **RULES}
        if arm.guarded:
            key = os.urandom(32)
            words = [
                *(sys.executable, "-m", "ftslurm.lighthouse", f"--log-dir={folder}", "--heartbeat-s=2"),
                *("--orphan-after-s=3600", f"--lighthouse={json.dumps(settings)}"),
            ]
            environ |= {"FTSLURM_RUN_DIR": str(folder), "FTSLURM_STEP": "lighthouse/0", "FTSLURM_CLUSTER": "local"}
            send = messages.encode(messages.RunKey(key.hex()))
        else:
            helper = Path(__file__).parent.parent / "tests" / "helpers" / "lighthouse_process.py"
            words = [sys.executable, str(helper), json.dumps({**settings, "folder": str(folder)})]
    process = subprocess.Popen(
        words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "stderr").open("wb")
    )
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(send)
        process.stdin.flush()
        line = process.stdout.readline()
        while arm.kind == "ftslurm" and line and json.loads(line)["type"] != messages.LighthouseUp.kind:
            line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Lighthouse has not started: {(folder / 'stderr').read_text()}")
        url = json.loads(line)["url"] if arm.kind == "ftslurm" else line.decode().strip()
        if arm.kind == "torchft":
            url = f"http://127.0.0.1:{url.rpartition(':')[2]}"
        subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)  # ends with the Lighthouse
        for number in range(members if arm.kind == "ftslurm" else 0):  # as the controller: one after the other
            process.stdin.write(messages.encode(messages.Member(number, 0, member(number).store_address)))
            process.stdin.flush()
            time.sleep(0.001)
        time.sleep(1.0)
        yield Served(url, process.pid, key)
    finally:
        process.kill()
        process.wait()


def measure(arm: Arm, members: int, steps: int, step_s: float, idle_s: float) -> Result:
    """Measure one Lighthouse with this many members."""
    with tempfile.TemporaryDirectory() as folder, serving(arm, members, Path(folder)) as served:
        before_mb = served.memory_mb()
        managers = Managers(served.url, range(members), arm.interval_s, served.key)
        try:
            managers.rest(time.perf_counter() + min(1.0, arm.interval_s) * 1.5)
            managers.step(0)  # connections and tables are set up, the id is new
            first = managers.step(1)
            beat_s = _heartbeat_s(served, managers, idle_s)
            began, evictions = time.perf_counter(), 0
            waits: list[float] = []
            for number in range(steps):
                managers.rest(began + number * step_s)
                step = managers.step(number + 2)
                waits += step.waits_s
                evictions += step.quorums != first.quorums or len(step.sizes) != 1
            quorum_s = _quorum_s(served, managers, steps + 2)
            ranked = statistics.quantiles(waits, n=100)
            return Result(
                lighthouse=arm.name,
                members=members,
                heartbeat_interval_s=arm.interval_s,
                heartbeat_cpu_us=round(1e6 * beat_s, 1),
                quorum_cpu_ms=round(1e3 * quorum_s, 1),
                core_percent=round(100 * (beat_s * members / arm.interval_s + quorum_s), 1),
                memory_mb=round(served.memory_mb() - before_mb, 1),
                p50_ms=round(1e3 * ranked[49], 1),
                p95_ms=round(1e3 * ranked[94], 1),
                false_evictions=evictions,
            )
        finally:
            managers.close()


def _heartbeat_s(served: Served, managers: Managers, seconds: float) -> float:
    """Return the CPU time of one heartbeat, with all that the Lighthouse does meanwhile."""
    cpu, beaten = served.cpu_s(), managers.beaten
    managers.rest(time.perf_counter() + seconds)
    return (served.cpu_s() - cpu) / max(1, managers.beaten - beaten)


def _quorum_s(served: Served, managers: Managers, first: int) -> float:
    """Return the CPU time of one quorum of all. Meanwhile heartbeats are as rare as they may be."""
    managers.beat_every(RULES["heartbeat_timeout_ms"] / 1000 / 2)
    cpu = served.cpu_s()
    for number in range(ALONE):
        managers.step(first + number)
    return (served.cpu_s() - cpu) / ALONE


def compare(
    members: Sequence[int], steps: int = 20, step_s: float = 1.0, idle_s: float = 10.0, names: Sequence[str] = ()
) -> Iterator[Result]:
    """Measure all Lighthouses, or those of these names, with each number of members."""
    for count in members:
        for arm in arms():
            if not names or arm.name in names:
                yield measure(arm, count, steps, step_s, idle_s)


def write(found: list[Result], about: dict[str, object]) -> None:
    """Write the results as JSON, a table and a picture of the CPU time with the most members."""
    results.save(results.FOLDER / "scale-lighthouse.json", {"conditions": about, "results": [asdict(r) for r in found]})
    header = ["Lighthouse", "managers", "heartbeat, us CPU", "quorum of all, ms CPU", "share of a core", "memory, MB"]
    rows = [
        [
            *(one.lighthouse, str(one.members), f"{one.heartbeat_cpu_us:.0f}", f"{one.quorum_cpu_ms:.0f}"),
            *(f"{one.core_percent:.1f} %", f"{one.memory_mb:.0f}", f"{one.p50_ms:.0f}", f"{one.p95_ms:.0f}"),
            str(one.false_evictions),
        ]
        for one in found
    ]
    table = results.table([*header, "p50, ms", "p95, ms", "false evictions"], rows)
    text = f"# The Lighthouse with many managers\n\n{results.told(about)}\n\n{table}"
    (results.FOLDER / "scale-lighthouse.md").write_text(text)
    most = max(one.members for one in found)
    shown = [one for one in found if one.members == most]
    bars = [results.Bar(r.lighthouse, (r.core_percent,), "%", ours=r.lighthouse != "torchft") for r in shown]
    picture = results.bars(
        f"{most} managers: CPU time of the Lighthouse",
        "per cent of a core, with a quorum a second and heartbeats at their interval",
        1.2 * max(one.core_percent for one in shown),
        bars,
    )
    (results.FOLDER / "scale-lighthouse.svg").write_text(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--members", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--idle-s", type=float, default=10.0)
    parser.add_argument("--arms", nargs="*", default=[], help="names of Lighthouses; default: all")
    args = parser.parse_args()
    about, found = results.conditions(), []
    for one in compare(args.members, args.steps, args.step_s, args.idle_s, args.arms):
        print(json.dumps(asdict(one)), flush=True)
        found.append(one)
        write(found, about)


if __name__ == "__main__":
    main()
