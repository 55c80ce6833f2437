"""Train with a parameter server: workers pull the weights, push gradients, and never wait for one another.

One script, two roles (ROLE_NAME). The server holds the weights; each session with a worker has a thread of its own,
which applies the worker's gradients as they come (asynchronous SGD). A worker whose session breaks opens another one at
FTSLURM_SERVER, an address that stays the same wherever the server is brought back.

What dies, and what becomes of it:

    a worker    another begins where it was: the server knows how far each worker has come
    the server  goes on from its checkpoint, or from the weights that a worker has pulled last, whichever is further
    both        the same; and if nobody has any weights that were trained, it ends with an error, never from step 0

The data: worker w trains on its batches 0, 1, 2, ... In the history of the weights that survives, each of them was
applied exactly once and in order, because the counts are part of the weights' state: a push whose answer was lost is
not applied again, one that was lost is repeated, and what was applied after the state from which a server goes on is
undone together with its counts, and done again.

Without ftslurm: set ROLE_NAME (server or worker), ROLE_RANK, NUM_REPLICA_GROUPS (the workers and the server), and for
workers FTSLURM_SERVER, the address that the server prints.
"""

import argparse
import hashlib
import http.client
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torchft.parameter_server import ParameterServer
from torchft.process_group import ProcessGroup, ProcessGroupGloo

WORKER = int(os.environ.get("ROLE_RANK", 0))
WORKERS = int(os.environ.get("NUM_REPLICA_GROUPS", 2)) - 1
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
TIMEOUT_S = 20.0  # a session that is silent for this long is over; longer than a worker takes for a batch
PATIENCE_S = 300.0  # longest wait for workers that may have the weights
NOTHING = -1  # number of updates of a worker without weights


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=400, help="of all workers together")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-time", type=float, default=0.02, help="seconds that a worker sleeps for each batch")
    parser.add_argument("--print-every", type=int, default=50, help="updates between two looks at held-out data")
    parser.add_argument(
        "--samples", help="a JSON line for each update to SAMPLES: its number, the worker and its batch"
    )
    return parser.parse_args()


def log(text: str) -> None:
    print(f"{os.environ.get('ROLE_NAME')} {WORKER} | {text}", flush=True)


class Task:
    """Learn what another network, with weights of its own, makes of random numbers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.seed, self.batch_size, self.dim = args.seed, args.batch_size, args.dim
        self.teacher, self.model = self._network(1), self._network(0)
        for layer in self.teacher[::2]:
            layer.weight.data *= 3
        self.initial = nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def _network(self, offset: int) -> nn.Sequential:
        torch.manual_seed(2 * self.seed + offset)
        return nn.Sequential(nn.Linear(8, self.dim), nn.Tanh(), nn.Linear(self.dim, 1))

    def loss(self, weights: Tensor, worker: int, batch: int, size: int) -> Tensor:
        """The loss of some weights on one batch of one worker; its gradient is left in the model."""
        nn.utils.vector_to_parameters(weights, self.model.parameters())
        x = torch.randn(size, 8, generator=torch.Generator().manual_seed(hash((self.seed, worker, batch))))
        self.model.zero_grad()
        return (self.model(x) - self.teacher(x).detach()).square().mean()

    def gradient(self, weights: Tensor, worker: int, batch: int) -> Tensor:
        self.loss(weights, worker, batch, self.batch_size).backward()
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def held_out(self, weights: Tensor) -> float:
        with torch.no_grad():
            return self.loss(weights, worker=10**6, batch=0, size=1024).item()


@dataclass
class State:
    """The training: weights, and what is in them. `counts` is the number of updates, then of each worker's batches."""

    counts: Tensor
    weights: Tensor

    @property
    def updates(self) -> int:
        return int(self.counts[0])

    def digest(self) -> str:
        return hashlib.sha256(bytes(self.weights.view(torch.uint8).tolist())).hexdigest()


def untrained(task: Task) -> State:
    return State(torch.zeros(1 + WORKERS, dtype=torch.int64), task.initial.clone())


class Gone(Exception):
    """The other end of a session."""


def give(session: ProcessGroup, root: int, *tensors: Tensor) -> None:
    """Copy tensors from one end of a session to the other; the server is 0, the worker 1.

    Raises:
        Gone: the other end has died.
    """
    try:
        for tensor in tensors:
            session.broadcast_one(tensor, root=root).wait()
    except RuntimeError as error:
        raise Gone(str(error).splitlines()[0]) from error


# --- the server -------------------------------------------------------------------------------------------------------


class Server(ParameterServer):
    """Holds the state. `step` is what a launcher may show as progress."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.task = args, Task(args)
        self.changed = threading.Condition()
        self.began = time.monotonic()
        self.problem: str | None = None  # why the server cannot continue
        self.touched = False  # an update was applied in this attempt
        self.came: dict[int, tuple[int, int]] = {}  # worker -> its attempt, and the updates in its weights
        self.every = int(os.environ.get("FTSLURM_CHECKPOINT_EVERY", 0))
        folder = os.environ.get("FTSLURM_CHECKPOINT_DIR")
        self.path = Path(folder, "parameter_server.pt") if folder else None
        self.state = self.restore()
        super().__init__(port=0)

    @classmethod
    def new_process_group(cls) -> ProcessGroup:
        return ProcessGroupGloo(timeout=timedelta(seconds=TIMEOUT_S))

    @property
    def step(self) -> int | None:
        return None if self.state is None else self.state.updates

    def restore(self) -> State | None:
        """The state of the checkpoint; else, in the first attempt, an untrained one; else only a worker may have it."""
        if self.path is not None and self.path.exists():
            state, ours = State(**torch.load(self.path, weights_only=True)), untrained(self.task)
            if (len(state.counts), len(state.weights)) != (len(ours.counts), len(ours.weights)):
                raise SystemExit(f"{self.path} is of another model, or of another number of workers")
            log(f"goes on from its checkpoint of update {state.updates}")
            return state
        if ATTEMPT > 0:
            log(f"no checkpoint at {self.path}: waits for a worker that has the weights")
        return untrained(self.task) if ATTEMPT == 0 else None

    def save(self, state: State) -> None:
        """Replace the checkpoint, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}.part")
        with open(part, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            torch.save(vars(state), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    def forward(self, _: str, session: ProcessGroup) -> None:
        """One session with one worker, in a thread of its own."""
        hello = torch.zeros(3, dtype=torch.int64)  # worker, its attempt, the updates in its weights
        try:
            give(session, 1, hello)
            worker, attempt, held = hello.tolist()
            self.welcome(session, worker, attempt, held)
            self.serve(session, worker)
        except Gone as error:
            log(f"worker {hello[0].item()} is gone: {error}")
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error}"

    def welcome(self, session: ProcessGroup, worker: int, attempt: int, held: int) -> None:
        """Take the worker's weights if they are further than ours, and nothing was built on ours in this attempt."""
        with self.changed:
            wanted = not self.touched and held > (NOTHING if self.state is None else self.state.updates)
        give(session, 0, torch.tensor([int(wanted)]))
        if wanted:
            theirs = untrained(self.task)
            give(session, 1, theirs.counts, theirs.weights)
        with self.changed:
            if wanted and not self.touched and (self.state is None or theirs.updates > self.state.updates):
                self.state = theirs
                log(f"goes on from update {theirs.updates}, with the weights that worker {worker} had")
            self.came[worker] = (attempt, held)
            if self.state is None and len(self.came) == WORKERS and set(self.came.values()) == {(0, NOTHING)}:
                log("no worker has ever had any weights: nothing is lost, the training begins")
                self.state = untrained(self.task)
            self.changed.notify_all()

    @property
    def lost(self) -> bool:
        """Whether nobody has the weights of the last attempt: all workers have come, or had the time to."""
        with self.changed:  # welcome() may be about to begin
            return self.state is None and (len(self.came) == WORKERS or time.monotonic() > self.began + PATIENCE_S)

    def serve(self, session: ProcessGroup, worker: int) -> None:
        """Weights to the worker, its gradient back, until the training is over."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.state is not None, timeout=TIMEOUT_S / 2):
                return  # the worker will open another session
        batch = torch.zeros(1, dtype=torch.int64)
        while True:
            with self.changed:
                assert self.state is not None
                counts, weights = self.state.counts.clone(), self.state.weights.clone()
            give(session, 0, counts, weights)
            if counts[0] >= self.args.updates:
                return
            gradient = torch.empty_like(weights)
            give(session, 1, batch, gradient)
            self.apply(worker, int(batch), gradient)

    def apply(self, worker: int, batch: int, gradient: Tensor) -> None:
        with self.changed:
            state = self.state
            assert state is not None
            if batch != state.counts[1 + worker] or state.updates >= self.args.updates:
                return  # of another history, or too late: the worker continues from this state
            state = State(state.counts.clone(), state.weights - self.args.lr * gradient)
            state.counts[[0, 1 + worker]] += 1
            # The last state is saved before a worker gets it: a worker ends only when all its updates are safe.
            if state.updates == self.args.updates or (self.every and state.updates % self.every == 0):
                self.save(state)
            self.state, self.touched = state, True
            if self.args.samples:
                with Path(self.args.samples).open("a") as file:
                    print(json.dumps({"update": state.updates, "worker": worker, "batch": batch}), file=file)
            if state.updates % self.args.print_every == 0:
                log(f"update {state.updates} | held-out loss {self.task.held_out(state.weights):.3f}")


def run_server(args: argparse.Namespace) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server = Server(args)
    if server.state is not None:
        log(f"update {server.state.updates} | held-out loss {server.task.held_out(server.state.weights):.3f}")
    log(f"serves at {server.address()}")
    while not stop.wait(0.5):
        if server.problem:
            raise SystemExit(server.problem)
        if server.lost:
            raise SystemExit(
                "The weights are lost: there is no checkpoint, and no worker has them. For checkpoints set "
                "checkpoint.every; a training does not begin anew without being told to."
            )
    if server.state is not None:
        server.save(server.state)
        log(f"stopped after update {server.state.updates}, weights sha256={server.state.digest()}")


# --- a worker ---------------------------------------------------------------------------------------------------------


def run_worker(args: argparse.Namespace) -> None:
    task = Task(args)
    state = untrained(task)  # the last state pulled from the server
    held = NOTHING
    while held < args.updates:
        try:
            session = Server.new_session(os.environ["FTSLURM_SERVER"])
        except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
            log(f"no session: {error!r}")
            time.sleep(0.2)
            continue
        try:
            wanted = torch.zeros(1, dtype=torch.int64)
            give(session, 1, torch.tensor([WORKER, ATTEMPT, held]))
            give(session, 0, wanted)
            if wanted:
                give(session, 1, state.counts, state.weights)
                log(f"the server is new: it was given the weights of update {held}")
            while held < args.updates:
                news = untrained(task)
                give(session, 0, news.counts, news.weights)
                state, held = news, news.updates  # both parts have arrived
                if held < args.updates:
                    batch = int(state.counts[1 + WORKER])
                    gradient = task.gradient(state.weights, WORKER, batch)
                    time.sleep(args.batch_time)
                    give(session, 1, torch.tensor([batch]), gradient)
        except Gone as error:
            log(f"the server is gone at update {held}: {error}")
    log(f"done: {state.counts[1 + WORKER]} of {held} updates, weights sha256={state.digest()}")


def main() -> None:
    args = parse_args()
    role = os.environ.get("ROLE_NAME")
    if role not in ("server", "worker") or int(os.environ.get("WORLD_SIZE", 1)) != 1 or (role == "server" and WORKER):
        raise SystemExit(
            "one server and one worker or more, as groups of one process each: groups.roles, groups.workers"
        )
    run_server(args) if role == "server" else run_worker(args)


if __name__ == "__main__":
    main()
