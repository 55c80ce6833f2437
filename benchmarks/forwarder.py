"""What does a quorum cost more because the Lighthouse is closed to strangers (docs/security.md)?

    python benchmarks/forwarder.py

One group asks for quorums with torchft's own client: directly, of an open Lighthouse; and as ftslurm runs it, through
the forwarder of the group's guard and the admission of the Lighthouse's guard (ftslurm/guard/forwarder.py,
admission.py), each in its own process. The two ways alternate, for our Lighthouse and for torchft's. Then it measures a
new connection until its first answer, handshake included; the forwarder's CPU time while a manager only sends
heartbeats; and the same for a group's store.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from lighthouse_process import LighthouseProcess
from process_cost import cpu_s

from ftslurm.guard.admission import Admission
from ftslurm.guard.forwarder import Forwarder
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.guard.sockets import Refusals
from ftslurm.protocol import messages

KEY = os.urandom(32)
RULES = {"min_replicas": 1, "join_timeout_ms": 100, "quorum_tick_ms": 20, "heartbeat_timeout_ms": 5000}
STORE = "s"  # the group's store address, as announced to our Lighthouse


def forward(url: str, pipe: Connection) -> None:
    """Run the forwarder of a group's guard."""

    async def serve() -> None:
        pipe.send(Forwarder(url, lambda: KEY, Refusals()).url)
        await asyncio.Event().wait()

    asyncio.run(serve())


def step(folder: Path, kind: str) -> str:
    """Start a Lighthouse in a step, as the controller does; return its address."""
    settings = {"kind": kind, "attempt": 0, "highest": 0, **RULES}
    if kind == "torchft":
        settings["quorum_tick_ms"] = 1
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ftslurm.lighthouse", f"--log-dir={folder}", "--heartbeat-s=1"),
            *("--orphan-after-s=3600", f"--lighthouse={json.dumps(settings)}"),
        ],
        env=os.environ | {"FTSLURM_RUN_DIR": str(folder), "FTSLURM_STEP": "lighthouse/0", "FTSLURM_CLUSTER": "local"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    atexit.register(process.kill)
    process.stdin.write(messages.encode(messages.RunKey(KEY.hex())) + messages.encode(messages.Member(0, 0, STORE)))
    process.stdin.flush()
    for line in process.stdout:
        message = json.loads(line)
        if message["type"] == "address":
            return str(message["url"])
    raise RuntimeError(f"the Lighthouse has not started, see {folder}")


def keep_store(pipe: Connection) -> None:
    """Run a group's guard and two stores in one process, one open, one behind the admission; print their addresses."""
    from torch.distributed import TCPStore

    stores = []
    for _ in range(2):
        listener = socket.create_server(("127.0.0.1", 0))
        copy, port = listener.dup(), listener.getsockname()[1]
        fd = listener.detach()
        stores.append(
            (copy, port, TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd))
        )

    async def serve() -> None:
        admission = Admission(lambda: KEY, Refusals())
        pipe.send((f"http://127.0.0.1:{stores[0][1]}", f"http://{admission.open('127.0.0.1', '127.0.0.1')}/store"))
        admission.offer("store", FilteredListener(stores[1][0]))
        await asyncio.Event().wait()

    asyncio.run(serve())


def store_trips(url: str, count: int) -> list[float]:
    """Return the seconds that each set and read of a value takes, without the first tenth."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", int(url.rpartition(":")[2]), is_master=False)
    times = []
    for number in range(count):
        began = time.perf_counter()
        store.set("key", str(number))
        store.get("key")
        times.append(time.perf_counter() - began)
    return times[count // 10 :]


def started(context: Any, target: Callable[..., None], *words: object) -> tuple[Any, Any]:
    """Start a process; return it and the first object that it sends."""
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*words, there), daemon=True)
    process.start()
    return process, here.recv()


def compare(name: str, ways: tuple[str, str], measure: Callable[[str, int], list[float]]) -> None:
    """Print one row: both ways in turn."""
    arms: tuple[list[float], list[float]] = ([], [])
    for turn in range(8):
        arms[turn % 2].extend(measure(ways[turn % 2], turn // 2))
    more = 1e3 * (statistics.median(arms[1]) - statistics.median(arms[0]))
    print(f"{name:<24}{cell(arms[0]):>18}{cell(arms[1]):>18}{more:>10.3f}", flush=True)


def round_trips(url: str, count: int, first: int) -> list[float]:
    """Return the seconds from request to answer, without the first tenth of the requests."""
    from torchft.coordination import LighthouseClient

    client = LighthouseClient(url, timedelta(seconds=10))
    times = []
    for number in range(first, first + count):
        began = time.perf_counter()
        client.quorum("a", timedelta(seconds=10), "a", STORE, number, 1, False)
        times.append(time.perf_counter() - began)
    return times[count // 10 :]


def first_answers(url: str, count: int) -> list[float]:
    """Return the seconds from dialling to the answer to the first heartbeat."""
    from torchft.coordination import LighthouseClient

    times = []
    for _ in range(count):
        began = time.perf_counter()
        LighthouseClient(url, timedelta(seconds=10)).heartbeat("a")
        times.append(time.perf_counter() - began)
    return times


def cell(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.3f} ({1e3 * statistics.quantiles(times, n=100)[98]:.3f})"


def heartbeats(way: str, pid: int) -> float:
    """Return the share of a core that a guard takes for ten heartbeats a second."""
    from torchft.coordination import LighthouseClient

    client = LighthouseClient(way, timedelta(seconds=10))
    cpu, began = cpu_s(pid), time.monotonic()
    while time.monotonic() < began + 10:
        client.heartbeat("a")
        time.sleep(0.1)
    return (cpu_s(pid) - cpu) / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=1000)
    args = parser.parse_args()
    os.environ.setdefault("RUST_LOG", "warn")
    from torchft.coordination import LighthouseServer

    context = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "open").mkdir()
        ours = LighthouseProcess(Path(folder) / "open", **RULES)
        atexit.register(ours.kill)
        stock = LighthouseServer(bind="127.0.0.1:0", **RULES | {"quorum_tick_ms": 1})
        stock_url = f"http://127.0.0.1:{stock.address().rpartition(':')[2]}"
        print(f"{'ms, median (p99)':<24}{'straight':>18}{'closed':>18}{'more':>10}   of {args.n}")
        part = args.n // 4
        for name, url in (("ftslurm", ours.url), ("torchft", stock_url)):
            (Path(folder) / name).mkdir()
            process, way = started(context, forward, step(Path(folder) / name, name))
            compare(f"{name} quorum", (url, way), lambda way, turn: round_trips(way, part, turn * part))
            compare(f"{name} first answer", (url, way), lambda way, _: first_answers(way, part // 4))
            if name == "ftslurm":
                print(f"CPU of the forwarder with ten heartbeats a second: {100 * heartbeats(way, process.pid):.2f} %")
            process.terminate()
        stock.shutdown()
    keeper, (straight, closed) = started(context, keep_store)
    process, way = started(context, forward, closed)
    compare("store, set and get", (straight, way), lambda way, _: store_trips(way, part))
    for each in (process, keeper):
        each.terminate()


if __name__ == "__main__":
    main()
