"""What a quorum and the heartbeats of many replica groups cost: our Lighthouse beside torchft's.

    python benchmarks/scale_lighthouse.py [--members 64 256 1000] [--steps 20]

Imitated managers (lighthouse_clients.py) send heartbeats and ask, all at once, for a quorum each --step-s seconds, as
groups do that have finished the same allreduce. For each number of members and each Lighthouse: the CPU time of the
Lighthouse's processes as a share of a core, while there are only heartbeats and with a quorum a second; its memory
before and after; and how long a group waits for its quorum after the last group has asked (p50, p95 of all groups and
steps). A quorum that lacks a member counts as a false eviction.

    ftslurm          as a run has it: behind its guard, heartbeats of torchft_patches.heartbeat_interval_s
    ftslurm, 100 ms  the same with torchft's heartbeats, which is what a script's own large settings would be
    torchft          torchft's Rust Lighthouse and heartbeats at their defaults
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lighthouse_clients import Managers, member

from ftslurm.protocol import messages

RULES = {"min_replicas": 1, "join_timeout_ms": 60_000, "heartbeat_timeout_ms": 5000}
TORCHFT_INTERVAL_S = 0.1
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
    heartbeats_core_percent: float
    quorums_core_percent: float  # with a quorum of all every step, and the heartbeats
    cpu_ms_per_quorum: float  # beyond the heartbeats
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
        ticks = 0
        for pid in self._processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

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
        settings = {"kind": "ftslurm", "local": True, "port": 0, "may_move": False, "quorum_tick_ms": 20, **RULES}
        if arm.guarded:
            key = os.urandom(32)
            words = [
                *(sys.executable, "-m", "ftslurm.lighthouse", f"--log-dir={folder}", "--heartbeat-s=2"),
                *("--orphan-after-s=3600", "--eof-ends", f"--lighthouse={json.dumps(settings)}"),
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
            beating_s = _share(served, managers, idle_s)
            cpu, began, waits, evictions = served.cpu_s(), time.perf_counter(), [], 0
            for number in range(steps):
                managers.rest(began + number * step_s)
                step = managers.step(number + 2)
                waits += step.waits_s
                evictions += step.quorums != first.quorums or len(step.sizes) != 1
            managers.rest(began + steps * step_s)
            took_s = time.perf_counter() - began
            with_quorums = (served.cpu_s() - cpu) / took_s
            ranked = statistics.quantiles(waits, n=100)
            return Result(
                lighthouse=arm.name,
                members=members,
                heartbeat_interval_s=arm.interval_s,
                heartbeats_core_percent=round(100 * beating_s, 1),
                quorums_core_percent=round(100 * with_quorums, 1),
                cpu_ms_per_quorum=round(1000 * (with_quorums - beating_s) * took_s / steps, 1),
                memory_mb=round(served.memory_mb() - before_mb, 1),
                p50_ms=round(1000 * ranked[49], 1),
                p95_ms=round(1000 * ranked[94], 1),
                false_evictions=evictions,
            )
        finally:
            managers.close()


def _share(served: Served, managers: Managers, seconds: float) -> float:
    """Return the share of a core that the heartbeats take."""
    cpu, began = served.cpu_s(), time.perf_counter()
    managers.rest(began + seconds)
    return (served.cpu_s() - cpu) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--members", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--idle-s", type=float, default=10.0)
    parser.add_argument("--arms", nargs="*", default=[arm.name for arm in arms()])
    args = parser.parse_args()
    for count in args.members:
        for arm in arms():
            if arm.name in args.arms:
                print(json.dumps(asdict(measure(arm, count, args.steps, args.step_s, args.idle_s))), flush=True)


if __name__ == "__main__":
    main()
