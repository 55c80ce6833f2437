"""How long do the others stand while a group heals, by blocking and beside the training, against the size of its state?

    python benchmarks/pause.py [--megabytes 32 128 512] [--rate 50] [--step-time 0.2] [--kills 0]

Three groups of one process on this machine, with torchft's Lighthouse; a network of RATE MB/s is what the healing side
imitates. Group 2 begins when the others are at step 10, and heals. Printed: the longest step of group 0 from then on
until it counts, the usual one, and whether all groups end with equal weights and states of the optimizer.

With --kills a campaign instead, at each size, beside only: so many times one group, the last one to be killed or
another, dies at a random moment and begins again at once; then all end together. The death of a group costs torchft's
Lighthouse its heartbeat time-out, which is no part of the pauses that are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import statistics
import threading
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PATIENCE = timedelta(seconds=60)
WIDTH = 512


class Slow:
    """A connection over a network of a rate that all of them share."""

    lock, free_at = threading.Lock(), 0.0

    def __init__(self, connection: socket.socket, rate: float) -> None:
        self.connection, self.rate = connection, rate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def recv_into(self, view: memoryview) -> int:
        count = self.connection.recv_into(view[: 1 << 18])
        with Slow.lock:
            Slow.free_at = max(Slow.free_at, time.monotonic()) + count / self.rate
            wait_s = Slow.free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))
        return count


def group(number: int, lighthouse: str, way: str, options: argparse.Namespace, megabytes: float, folder: str) -> None:
    """Train as one group until the file `stop` names the last step."""
    os.environ |= {"RUST_LOG": "error", "LOCAL_WORLD_SIZE": "1", "FTSLURM_HEALS": "1", "TORCHFT_LIGHTHOUSE": lighthouse}
    import torch
    from torch.distributed import TCPStore

    torch.set_num_threads(1)
    import torchft

    from ftslurm.guard.gateway import Gateway, pair
    from ftslurm.guard.interfaces import Reach
    from ftslurm.guard.network import Network
    from ftslurm.protocol.position import Position
    from ftslurm.worker import catch_up, patch_fit, torchft_patches, transport
    from ftslurm.worker.commits import Commits
    from ftslurm.worker.lineage_guard import LineageGuard
    from ftslurm.worker.parameter_sessions import Sessions
    from ftslurm.worker.progress import Observer
    from ftslurm.worker.quorum_abort import BrokenQuorums
    from ftslurm.worker.session import Watchers
    from ftslurm.worker.unhealed import Watch

    def log(event: str, **values: object) -> None:
        with Path(folder, f"{number}.jsonl").open("a") as file:
            print(json.dumps({"event": event, "at": time.monotonic(), **values}), file=file)

    requests, questions = pair()
    network, gateway = Network(requests, os.getpid()), Gateway(questions)
    network.learn("00" * 32)
    gateway.reach = Reach("127.0.0.1", "127.0.0.1")
    patch_fit.apply(torchft_patches.INSTALLS, [])
    transport.install(gateway)
    dial, rate = transport.RunTransport.dial, options.rate * 1e6
    setattr(transport.RunTransport, "dial", lambda *args: Slow(dial(*args), rate))  # noqa: B010

    def refuse(why: str) -> None:
        log("refused", why=why)
        os._exit(3)

    lineage = LineageGuard(refuse)
    watchers = Watchers(
        Observer(lambda _: None, Position()), lineage, Watch(print), Commits(print),
        BrokenQuorums(lineage.managers, Position()), Sessions(),
    )  # fmt: skip
    if way == "beside":
        watchers.beside = catch_up.Beside(lambda text: log("told", text=text))
        watchers.beside.install()
    from ftslurm.worker.run_manager import RunManager

    RunManager._ftslurm = watchers
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(number + int(time.time()))
    layers = max(1, int(megabytes * 1e6 / 12 / WIDTH / WIDTH))  # weights and two moments
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 1000)

    def load(state: Any) -> None:
        for one, name in ((net, "net"), (adam, "adam"), (schedule, "schedule")):
            one.load_state_dict(state[name])

    manager = RunManager(
        pg=torchft.ProcessGroupGloo(timeout=PATIENCE),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "adam": adam.state_dict(), "schedule": schedule.state_dict()},
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        replica_id=f"g{number}_",
        use_async_quorum=not options.sync,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    model, optimizer = torchft.DistributedDataParallel(manager, net), torchft.Optimizer(manager, adam)
    stop = Path(folder, "stop")
    log("begins")
    while not (stop.exists() and manager.current_step() >= int(stop.read_text() or 1 << 30)):
        began = time.monotonic()
        optimizer.zero_grad()
        time.sleep(options.step_time)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            schedule.step()
        counts = manager.is_participating() and not (watchers.beside is not None and watchers.beside.apart)
        log(
            "step", step=manager.current_step(), s=time.monotonic() - began, n=manager.num_participants(), counts=counts
        )
    manager.shutdown(wait=False)
    if watchers.beside is not None:
        watchers.beside.linger(manager)
    sha = hashlib.sha256()
    for one in [*net.parameters(), *(state[key] for state in adam.state.values() for key in sorted(state))]:
        sha.update(one.detach().numpy().tobytes())
    log("ends", step=manager.current_step(), digest=sha.hexdigest()[:12], lr=schedule.get_last_lr())
    time.sleep(1)
    os._exit(0)


class Groups:
    """The groups of one training."""

    def __init__(self, way: str, options: argparse.Namespace, megabytes: float, folder: str) -> None:
        from torchft.coordination import LighthouseServer

        self.lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=options.join_ms, quorum_tick_ms=20,
            heartbeat_timeout_ms=1000,
        )  # fmt: skip
        self.words = (self.lighthouse.address(), way, options, megabytes, folder)
        self.folder = Path(folder)
        self.processes: dict[int, Any] = {}

    def start(self, number: int) -> None:
        process = multiprocessing.get_context("spawn").Process(target=group, args=(number, *self.words))
        with (self.folder / f"{number}.jsonl").open("a") as file:
            print('{"event": "starts"}', file=file)  # not only when it has imported torch
        process.start()
        self.processes[number] = process

    def log(self, number: int) -> list[dict[str, Any]]:
        path = self.folder / f"{number}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def step(self, number: int) -> int:
        return max([line["step"] for line in self.log(number)[-3:] if line["event"] == "step"], default=0)

    def until(self, true: Any, what: str) -> None:
        deadline = time.monotonic() + 600
        while not true():
            assert time.monotonic() < deadline, what
            time.sleep(0.2)

    def counts(self, number: int) -> bool:
        since = [line for line in self.log(number) if line["event"] in ("starts", "step")]
        return bool(since) and since[-1].get("counts", False)

    def end(self) -> list[dict[str, Any]]:
        (self.folder / "stop").write_text(str(max(map(self.step, self.processes)) + 5))
        for number, process in self.processes.items():
            process.join(120)
            if process.exitcode is None:
                process.kill()
            print(f"group {number} ended with {process.exitcode}") if process.exitcode else None
        return [self.log(number)[-1] for number in self.processes]

    def told(self) -> list[str]:
        return [line["text"] for n in self.processes for line in self.log(n) if line["event"] in ("told", "refused")]


def once(way: str, options: argparse.Namespace, megabytes: float) -> None:
    """Let one group heal, and print the pause of another."""
    with TemporaryDirectory() as folder:
        groups = Groups(way, options, megabytes, folder)
        for number in (0, 1):
            groups.start(number)
        groups.until(lambda: min(groups.step(0), groups.step(1)) >= 10, "step 10")
        groups.start(2)
        groups.until(lambda: groups.counts(2), "that it counts")
        ends = groups.end()
        (begun,) = [line["at"] for line in groups.log(2) if line["event"] == "begins"]
        back = next(line for line in groups.log(2) if line.get("counts"))
        steps = [line for line in groups.log(0) if line["event"] == "step"]
        usual = statistics.median(line["s"] for line in steps if line["at"] < begun)
        longest = max(line["s"] for line in steps if begun <= line["at"] <= back["at"] + 1)
        equal = len({(one.get("step"), one.get("digest")) for one in ends}) == 1
        print(
            f"{way:8} {megabytes:6g} MB at {options.rate:g} MB/s: longest step {longest:6.2f} s (usual {usual:.2f}), "
            f"counts after {back['at'] - begun:6.2f} s, equal: {equal}",
            *groups.told(),
            flush=True,
        )


def campaign(options: argparse.Namespace, megabytes: float) -> None:
    """Kill groups at random moments; compare all at the end."""
    dice = random.Random(options.seed)  # noqa: S311
    with TemporaryDirectory() as folder:
        groups = Groups("beside", options, megabytes, folder)
        for number in range(3):
            groups.start(number)
        groups.until(lambda: all(groups.counts(n) and groups.step(n) > 3 for n in range(3)), "the beginning")
        last = 2
        for _ in range(options.kills):
            time.sleep(dice.uniform(0, options.most_s))
            whole = [n for n in range(3) if groups.counts(n) and groups.processes[n].is_alive()]
            victim = last if dice.random() < 0.5 or len(whole) < 2 else dice.choice(whole)
            if [n for n in whole if n != victim]:
                process = groups.processes[victim]
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                groups.start(victim)
                last = victim
        groups.until(lambda: all(map(groups.counts, range(3))), "that all count")
        time.sleep(2)
        ends = groups.end()
        equal = len({(one.get("step"), one.get("digest")) for one in ends}) == 1
        heals = sum(line["event"] == "begins" for n in range(3) for line in groups.log(n)) - 3
        print(f"{megabytes:g} MB: {heals} kills and heals, equal: {equal}", *sorted(set(groups.told())), sep="\n  ")
        if not equal:
            print(ends)
            shutil.copytree(folder, f"{folder}-unequal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[32, 128, 512])
    parser.add_argument("--rate", type=float, default=50, help="MB/s")
    parser.add_argument("--step-time", type=float, default=0.2, help="seconds that each step sleeps")
    parser.add_argument("--join-ms", type=int, default=10_000, help="join time-out of the Lighthouse")
    parser.add_argument("--ways", nargs="+", default=["blocking", "beside"])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=8, help="seconds between two kills, at most")
    parser.add_argument("--sync", action="store_true", help="a synchronous quorum")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["RUST_LOG"] = "error"
    for megabytes in options.megabytes:
        if options.kills:
            campaign(options, megabytes)
            continue
        for way in options.ways:
            once(way, options, megabytes)


if __name__ == "__main__":
    main()
