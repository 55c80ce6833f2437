"""A worker without torch, for runs with more groups than torch processes fit into this machine's memory.

    job.python=[python,benchmarks/light_worker.py]      takes the place of the interpreter in the guard's command line

The guard, its channel, its forwarders and the observer of the progress are ftslurm's own, and each group has torchft's
own manager in Rust, which speaks to the Lighthouse: a quorum and a commit each step, as in a training. What is missing
is torch: no import, no store that keeps anything, no collective and no transfer of weights. A group that comes back
takes over the step number of the others, nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ftslurm.guard import guard
from ftslurm.guard.gateway import Gateway, listener_at, publish
from ftslurm.lighthouse.stock import load_native
from ftslurm.protocol import addresses, messages
from ftslurm.worker import session
from ftslurm.worker.arguments import fill
from ftslurm.worker.progress import Observer

TIMEOUT = timedelta(seconds=120)


class Manager:
    """The attributes and methods of torchft's Manager that ftslurm observes, on torchft's own server and client."""

    def __init__(self, gateway: Gateway, store: str) -> None:
        os.environ["RUST_LOG"] = "error"  # else it logs each quorum with all its members
        native = load_native()
        self._server = native.ManagerServer(
            replica_id=f"light_{os.environ['REPLICA_GROUP_ID']}:{uuid.uuid4()}",  # each attempt is a new replica
            lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
            hostname=f"{gateway.reserve()}/manager",
            bind="127.0.0.1:0",
            store_addr=store,
            world_size=1,
            heartbeat_interval=timedelta(milliseconds=int(os.environ.get("FTSLURM_MANAGER_HEARTBEAT_MS", "100"))),
            connect_timeout=TIMEOUT,
            quorum_retries=0,
        )
        port = int(self._server.address().rpartition(":")[2].strip("/"))
        self._client = native.ManagerClient(f"http://127.0.0.1:{port}", connect_timeout=TIMEOUT)
        with listener_at(port) as listener:
            publish(gateway, addresses.manager(port), listener.fileno(), port)
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._quorum_future: Future[None] | None = None
        self._quorum_id = -1
        self._participating_replica_world_size = 0
        self._pending_state_dict: dict[str, int] | None = None
        self._step = 0

    def start_quorum(self) -> None:
        self._quorum_future = self._executor.submit(self._async_quorum)

    def _async_quorum(self) -> None:
        got = self._client._quorum(
            group_rank=0,
            step=self._step,
            checkpoint_metadata="",
            shrink_only=False,
            timeout=TIMEOUT,
            commit_failures=0,
            init_sync=True,
        )
        self._quorum_id, self._participating_replica_world_size = got.quorum_id, got.max_world_size
        if got.heal:
            self._pending_state_dict = {"step": got.max_step}

    def allreduce(self, gradient: float) -> float:
        """Wait for the quorum; nothing is exchanged."""
        assert self._quorum_future is not None
        self._quorum_future.result()
        return gradient

    def _apply_pending_state_dict(self) -> None:
        assert self._pending_state_dict is not None
        self._step = self._pending_state_dict["step"]
        self._pending_state_dict = None

    def should_commit(self) -> bool:
        if self._pending_state_dict is not None:
            self._apply_pending_state_dict()
        committed = bool(self._client.should_commit(0, self._step, True, TIMEOUT))
        self._step += committed
        return committed

    def current_step(self) -> int:
        return self._step


def main(task: guard.Task, orders: int, reports: int) -> NoReturn:
    """Run one worker until its end, in the order of ftslurm/worker/session.py."""
    module = ModuleType("light")
    module.Manager = Manager  # type: ignore[attr-defined]
    channel = session.Channel(task.index, orders, reports)
    observer = Observer(channel.say, position=task.position)
    observer.install(module)
    channel.say(messages.Ready())
    assign = channel.receive(messages.Assign)
    session.take_rank(task, assign, assign.ranks[task.index])
    print("pid", os.getpid(), flush=True)

    host, _, number = task.gateway.reserve().rpartition(":")
    store = socket.create_server(("127.0.0.1", 0))  # nobody asks it anything
    publish(task.gateway, addresses.STORE, store.fileno(), store.getsockname()[1])
    channel.say(messages.StoreUp(host, int(number)))
    observer.on_quorum = channel.say
    begin = channel.receive(messages.Begin)
    train(Manager(task.gateway, begin.public), fill(assign.args, os.environ))
    observer.flush()
    channel.say(messages.Done(observer.step))
    os._exit(0)


def train(manager: Any, argv: list[str]) -> None:
    """Take steps until the file STEPS_FILE-end says after which one to end; append a line for each, as toy.py does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-file", required=True)
    parser.add_argument("--step-time", type=float, default=1.0)
    options = parser.parse_args(argv)
    group, attempt = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    end, last = Path(f"{options.steps_file}-end"), sys.maxsize
    with Path(f"{options.steps_file}-{group}-0").open("a") as file:
        while manager.current_step() < last:
            manager.start_quorum()
            manager.allreduce(1.0)
            time.sleep(options.step_time)
            if manager.should_commit():
                step = {"time": time.time(), "group": group, "rank": 0, "attempt": attempt}
                file.write(json.dumps(step | {"step": manager.current_step()}) + "\n")
                file.flush()
            if end.exists():
                last = int(end.read_text())


if __name__ == "__main__":
    assert sys.argv[1:3] == ["-m", "ftslurm.worker"], f"not a guard's command line: {sys.argv}"
    del sys.argv[1:3]
    sys.modules["light_worker"] = sys.modules["__main__"]
    guard.main("light_worker")
