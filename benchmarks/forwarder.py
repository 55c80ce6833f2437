"""What does a quorum cost more because it goes through the guard's forwarder (ftslurm/worker/forward.py)?

    python benchmarks/forwarder.py

One group asks for a quorum again and again with torchft's own client, straight and through a forwarder in a process of
its own, of our Lighthouse and of torchft's; then what the forwarder costs while a manager only sends its heartbeats.
"""

from __future__ import annotations

import argparse
import atexit
import os
import selectors
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from lighthouse_process import LighthouseProcess

from ftslurm.worker.forward import Forwarder


def forward(url: str, pipe: Connection) -> None:
    selector = selectors.PollSelector()
    forwarder = Forwarder(selector, url)
    pipe.send(forwarder.url)
    while True:
        for key, events in selector.select(min(1.0, forwarder.tend())):
            key.data(events)


def round_trips(url: str, count: int, first: int) -> list[float]:
    from torchft.coordination import LighthouseClient

    client = LighthouseClient(url, timedelta(seconds=10))
    times = []
    for step in range(first, first + count):
        began = time.perf_counter()
        client.quorum("a", timedelta(seconds=10), "a", "s", step, 1, False)
        times.append(time.perf_counter() - began)
    return times[count // 10 :]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=1000)
    args = parser.parse_args()
    from torchft.coordination import LighthouseClient, LighthouseServer

    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours = LighthouseProcess(Path(folder))
        atexit.register(ours.kill)
        stock = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=1, heartbeat_timeout_ms=5000
        )
        stock_url = f"http://127.0.0.1:{stock.address().rpartition(':')[2]}"
        print(f"{'ms a quorum':<16}{'straight':>20}{'forwarded':>20}   median (p99) of {args.n}")
        for name, url in (("ftslurm", ours.url), ("torchft", stock_url)):
            here, there = context.Pipe()
            process = context.Process(target=forward, args=(url, there), daemon=True)
            process.start()
            arms: tuple[list[float], list[float]] = ([], [])
            way = here.recv()
            for turn in range(8):  # in turn
                arms[turn % 2].extend(
                    round_trips((url, way)[turn % 2], args.n // 4, turn * (args.n // 4))
                )  # no step is left out: it would be refused
            cells = [f"{1e3 * statistics.median(a):.3f} ({1e3 * statistics.quantiles(a, n=100)[98]:.3f})" for a in arms]
            print(f"{name:<16}" + "".join(f"{cell:>20}" for cell in cells))
            if name == "ftslurm":
                client = LighthouseClient(way, timedelta(seconds=10))
                cpu, began = cpu_seconds(process.pid or 0), time.monotonic()
                while time.monotonic() < began + 10:
                    client.heartbeat("a")
                    time.sleep(0.1)
                share = (cpu_seconds(process.pid or 0) - cpu) / (time.monotonic() - began)
                print(f"CPU of the forwarder with ten heartbeats a second: {100 * share:.2f} %")
            process.terminate()
        stock.shutdown()


if __name__ == "__main__":
    main()
