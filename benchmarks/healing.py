"""How long does a group that came back take to get the state from a live one, by ftslurm's transport and by torchft's?

    python benchmarks/healing.py [--gigabytes 1 2 4] [--n 3]

Two processes on this machine, a live group and one that heals, each with a state of that size in 64 tensors on the CPU.
They alternate: ftslurm's (behind a guard each), as many raw sockets, which is what this machine can do at best,
torchft's HTTP in one stream (its default) and in 8 chunks fetched side by side, and its process group (PGTransport over
Gloo), with new memory for the state and into the tensors of the healing model.
Measured are the seconds from the request to the complete state, the CPU time of both sides, and the memory that the
healing side needs beside its own state.

On this machine both ends share the cores and no network lies between them: the numbers tell what each way costs in CPU
and memory, and which is bound by what; not how fast a network is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo

from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.interfaces import Reach
from ftslurm.guard.network import Network
from ftslurm.worker import transport

TENSORS = 64
PATIENCE = timedelta(seconds=300)
WAYS: dict[str, dict[str, int]] = {
    "ftslurm": {},
    "raw sockets": {},
    "http": {"chunks": 0},
    "http, 8 chunks": {"chunks": 8},
    "process group": {"in_place": False},
    "process group, in place": {"in_place": True},
}


@dataclass(frozen=True)
class Heal:
    """One transfer: wall time, CPU time of both sides, and MB of memory beside the receiver's state."""

    way: str
    gigabytes: float
    seconds: float
    cpu_s: float
    extra_mb: float


def state_of(gigabytes: float, fill: bool) -> dict[str, Any]:
    """Return a state of 64 float32 tensors and a few values that are not tensors, as an optimizer has."""
    size = int(gigabytes * 2**30 / 4 / TENSORS)
    tensors = {f"layer{n}": torch.full((size,), float(n) if fill else 0.0) for n in range(TENSORS)}
    return {"model": tensors, "step": 7}


class RawSockets:
    """As many sockets as ftslurm's transport has streams. Each moves its share of the tensors."""

    def __init__(self, state: dict[str, Any]) -> None:
        tensors = [tensor.view(torch.uint8).numpy() for tensor in state["model"].values()]
        self.shares = [tensors[n :: transport.STREAMS] for n in range(transport.STREAMS)]
        self.state = state
        self.server = socket.create_server(("127.0.0.1", 0))

    def metadata(self) -> str:
        return str(self.server.getsockname()[1])

    def send_checkpoint(self, *_: object) -> None:
        def send(share: list[Any]) -> None:
            with self.server.accept()[0] as connection:
                for tensor in share:
                    connection.sendall(tensor)

        pool = ThreadPoolExecutor(transport.STREAMS)
        for share in self.shares:
            pool.submit(send, share)

    def recv_checkpoint(self, _: int, metadata: str, *__: object) -> dict[str, Any]:
        def receive(share: list[Any]) -> None:
            with socket.create_connection(("127.0.0.1", int(metadata))) as connection:
                for view in [memoryview(one) for one in share]:
                    while view:
                        view = view[connection.recv_into(view) :]

        with ThreadPoolExecutor(transport.STREAMS) as pool:
            list(pool.map(receive, self.shares))
        return self.state

    def disallow_checkpoint(self) -> None:
        pass


def transport_of(way: str, rank: int, state: dict[str, Any], port: int) -> Any:
    """Return the transport of one side; over a process group both sides meet in the store."""
    kind = WAYS[way]
    if way == "raw sockets":
        return RawSockets(state)
    if way == "ftslurm":
        requests, questions = pair()
        network, transport.RunTransport.gateway = Network(requests, os.getpid()), Gateway(questions)
        network.learn("00" * 32)
        transport.RunTransport.gateway.reach = Reach("127.0.0.1", "127.0.0.1")
        return transport.RunTransport(PATIENCE)
    if "chunks" in kind:
        return HTTPTransport(timeout=PATIENCE, num_chunks=kind["chunks"])
    group = ProcessGroupGloo(timeout=PATIENCE)
    group.configure(f"127.0.0.1:{port}/{way.replace(' ', '')}", f"replica{rank}", rank, 2)
    return PGTransport(group, PATIENCE, torch.device("cpu"), (lambda: state) if kind["in_place"] else None)


def live_side(way: str, gigabytes: float, port: int, pipe: Connection) -> None:
    """Hold the state, send it once, and tell the CPU time that took."""
    transport = transport_of(way, 0, state := state_of(gigabytes, fill=True), port)
    pipe.send(transport.metadata())
    pipe.recv()
    start = time.process_time()
    transport.send_checkpoint([1], 7, state, PATIENCE)
    pipe.recv()
    pipe.send(time.process_time() - start)
    transport.disallow_checkpoint()
    os._exit(0)


def healing_side(way: str, gigabytes: float, port: int, pipe: Connection) -> None:
    """Receive the state, check it, and tell seconds, CPU time and the additional memory."""
    transport = transport_of(way, 1, state := state_of(gigabytes, fill=False), port)
    metadata = pipe.recv()
    before, cpu, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), time.monotonic()
    received = transport.recv_checkpoint(0, metadata, 7, PATIENCE)
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(TENSORS):
        tensor = received["model"][f"layer{n}"]
        assert way == "raw sockets" or tensor[0] == tensor[-1] == n
        assert tensor.shape == state["model"][f"layer{n}"].shape
    pipe.send((seconds, cpu, (after - before) / 1024))
    os._exit(0)


def heal(way: str, gigabytes: float) -> Heal:
    """Transfer a state once between two fresh processes."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sides = []
    for work in (live_side, healing_side):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(way, gigabytes, store.port, theirs))
        process.start()
        theirs.close()
        sides.append((process, ours))
    (live, to_live), (healing, to_healing) = sides
    metadata = to_live.recv()
    to_live.send("go")
    to_healing.send(metadata)
    seconds, cpu, extra = to_healing.recv()
    to_live.send("done")
    cpu += to_live.recv()
    for process in (live, healing):
        process.join()
        assert process.exitcode == 0, f"a side ended with {process.exitcode}"
    return Heal(way, gigabytes, seconds, cpu, extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 2, 4])
    parser.add_argument("--n", type=int, default=3)
    options = parser.parse_args()
    heals = []
    for gigabytes in options.gigabytes:
        for _ in range(options.n):
            for way in WAYS:
                heals.append(heal(way, gigabytes))
                print(json.dumps(asdict(heals[-1])), flush=True)
        for way in WAYS:
            mine = [one for one in heals if (one.way, one.gigabytes) == (way, gigabytes)]
            middle = statistics.median(one.seconds for one in mine)
            print(f"{gigabytes:g} GB  {way:24} {middle:6.2f} s  {gigabytes / middle:5.2f} GB/s")


if __name__ == "__main__":
    main()
