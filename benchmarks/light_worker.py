"""A worker without torch, for runs that are not about tensors: it starts in 0.3 s instead of 2, and takes 40 MB.

    job.python=[python,benchmarks/light_worker.py]      takes the place of the interpreter in the guard's command line

Guard, channel, code, ranks, logs, orders, the observer of the progress and the lineage guard are ftslurm's own, and
each group has torchft's own manager in Rust, which speaks to the Lighthouse: a quorum and a vote each step, as in a
training. Missing are torch, collectives and checkpoints. The ranks of a group meet in files of the run directory, not
in a store.

A script gets its Manager from here: `from light_worker import Manager`. The state of a training is a chain of digests,
one link for each step. A group that comes back begins with a random one until it heals from its donor: if it took a
step with its own, its digest would differ for ever.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import socket
import sys
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

if sys.argv[1:2] == ["-c"]:  # as the interpreter would: ftslurm is imported from the run's copy of it
    exec(sys.argv[2].partition("from runpy")[0])  # noqa: S102

from ftslurm.guard import guard
from ftslurm.guard.gateway import Gateway
from ftslurm.lighthouse.stock import load_native
from ftslurm.protocol import addresses
from ftslurm.worker import closed_servers, lineage_guard, progress, session, warmup
from ftslurm.worker.parameter_sessions import Sessions

TIMEOUT = timedelta(seconds=60)
_worker = SimpleNamespace(gateway=None, store=None)  # of this process


class Manager:
    """The attributes and methods of torchft's Manager that ftslurm observes, on torchft's own server and client."""

    def __init__(self) -> None:
        os.environ["RUST_LOG"] = "error"  # else it logs each quorum with all its members
        self._native = load_native()
        self._rank = int(os.environ["RANK"])
        address = self._serve() if self._rank == 0 else closed_servers.through(_worker.gateway, meet("manager"))
        self._client = self._native.ManagerClient(address, connect_timeout=TIMEOUT)
        if self._rank == 0:  # before the guard lets nobody in but itself
            port = int(address.rpartition(":")[2])
            _worker.gateway.publish(f"{addresses.MANAGER}{port}", port)
            leave("manager", self._server.address())
        since_0_3 = hasattr(self._native.QuorumResult, "reconfigure_handles")  # of the process group: there is none
        self._handle = {"reconfigure_handle": ""} if since_0_3 else {}
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._quorum_future: Future[None] | None = None
        self._quorum_id = -1
        self._pg = None  # nothing is exchanged
        self._participating_replica_world_size = 0
        self._healing = False
        self._pending_state_dict: dict[str, Any] | None = None
        self._step = 0
        self._states: dict[int, str] = {}
        self.digest = "first" if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else uuid.uuid4().hex

    def _serve(self) -> str:
        """Start the manager of the group; return its address for this process."""
        self._server = self._native.ManagerServer(
            replica_id=f"light_{os.environ['REPLICA_GROUP_ID']}:{uuid.uuid4()}",  # each attempt is a new replica
            lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
            hostname=f"{_worker.gateway.reserve()}/manager",
            bind="127.0.0.1:0",
            store_addr=closed_servers.store.public,
            world_size=int(os.environ["WORLD_SIZE"]),
            heartbeat_interval=timedelta(milliseconds=int(os.environ.get("FTSLURM_MANAGER_HEARTBEAT_MS", "100"))),
            connect_timeout=TIMEOUT,
            quorum_retries=int(os.environ["TORCHFT_QUORUM_RETRIES"]),
        )
        return f"http://127.0.0.1:{self._server.address().rpartition(':')[2].strip('/')}"

    def start_quorum(self) -> None:
        self._quorum_future = self._executor.submit(self._async_quorum)

    def _async_quorum(self, allow_heal: bool = True) -> None:
        # Nothing holds up a donor: it may ask for its next quorum before its state of this one is fetched.
        self._states = {**dict(list(self._states.items())[-3:]), self._step: self.digest}
        got = self._client._quorum(
            group_rank=self._rank,
            step=self._step,
            checkpoint_metadata=json.dumps(self._states),
            shrink_only=False,
            timeout=timedelta(seconds=float(os.environ["TORCHFT_QUORUM_TIMEOUT_SEC"])),
            commit_failures=0,
            init_sync=True,
            **self._handle,
        )
        self._quorum_id, self._participating_replica_world_size = got.quorum_id, got.max_world_size
        if got.heal and allow_heal:
            self._healing = True
            donor = closed_servers.through(_worker.gateway, got.recover_src_manager_address)
            client = self._native.ManagerClient(donor, connect_timeout=TIMEOUT)
            states = json.loads(client._checkpoint_metadata(self._rank, timeout=TIMEOUT))
            self._pending_state_dict = {"step": got.max_step, "digest": states[str(got.max_step)]}

    def wait_quorum(self) -> None:
        assert self._quorum_future is not None
        self._quorum_future.result()

    def num_participants(self) -> int:
        """Wait for the quorum."""
        self.wait_quorum()
        return self._participating_replica_world_size

    def errored(self) -> None:
        """Return the error of this step: there are none here."""

    def allreduce(self, gradient: float) -> float:
        """Wait for the quorum; nothing is exchanged."""
        self.num_participants()
        return gradient

    def _apply_pending_state_dict(self) -> None:
        assert self._pending_state_dict is not None
        self._step, self.digest = self._pending_state_dict["step"], self._pending_state_dict["digest"]
        self._pending_state_dict, self._healing = None, False

    def should_commit(self) -> bool:
        if self._healing:
            self._apply_pending_state_dict()
        committed = bool(self._client.should_commit(self._rank, self._step, True, TIMEOUT))
        self._step += committed
        if committed:
            self.digest = hashlib.sha256(f"{self.digest} {self._step}".encode()).hexdigest()
        return committed

    def current_step(self) -> int:
        return self._step

    def shutdown(self) -> None:
        """End the manager in Rust; its heartbeats to the Lighthouse end."""
        if self._rank == 0:
            self._server.shutdown()


def place(name: str) -> Path:
    """Return the file of this attempt in which its ranks meet."""
    attempt = f"{os.environ['REPLICA_GROUP_ID']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    return Path(os.environ["FTSLURM_RUN_DIR"]) / f"light-{attempt}-{name}"


def leave(name: str, text: str = "") -> None:
    """Leave a text for the other ranks."""
    part = place(f"{name}.part")
    part.write_text(text)
    part.rename(place(name))


def meet(name: str) -> str:
    """Wait for the text that another rank leaves."""
    while not place(name).exists():
        time.sleep(0.01)
    return place(name).read_text()


def main(task: guard.Task, orders: int, reports: int) -> NoReturn:
    """Run one worker until its end: ftslurm's own, with all that would import torch replaced."""
    _worker.gateway = task.gateway
    sys.modules["torchft.manager"] = sys.modules["light_worker"]
    session.import_everything = watch
    session.host_store = host_store
    warmup.LATE = ()  # type: ignore[assignment]
    session.main(task, orders, reports)


def watch(task: guard.Task, channel: session.Channel) -> session.Watchers:
    """Install the observers of the Manager; those of torch have nothing to watch."""
    watchers = session.Watchers(
        progress=progress.Observer(channel.say, position=task.position),
        lineage=lineage_guard.LineageGuard(
            lambda reason: session.end_before_step(channel, reason), lambda: task.position.reached
        ),
        unhealed=SimpleNamespace(install=lambda: None, ended=lambda: None),  # type: ignore[arg-type]
        commits=SimpleNamespace(install=bool, step_begins=bool, has_voted=lambda *_: None),  # type: ignore[arg-type]
        quorums=SimpleNamespace(listen_to=bool, cover=bool, install=bool, joined=SimpleNamespace()),  # type: ignore[arg-type]
        sessions=Sessions(),
    )
    importlib.import_module("ftslurm.worker.run_manager").install(watchers)
    return watchers


def host_store(gateway: Gateway) -> tuple[str, int]:
    """Publish a port as the group's store. Nobody asks it anything."""
    host, _, port = gateway.reserve().rpartition(":")
    _worker.store = socket.create_server(("127.0.0.1", 0))
    gateway.publish(addresses.STORE, _worker.store.getsockname()[1])
    return host, int(port)


if __name__ == "__main__":
    assert (sys.argv[1], sys.argv[3]) == ("-c", "ftslurm.worker"), f"not a guard's command line: {sys.argv}"
    del sys.argv[1:4]
    sys.modules["light_worker"] = sys.modules["__main__"]
    guard.main("light_worker")
