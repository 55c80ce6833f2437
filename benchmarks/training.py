"""The training that all contenders of goodput.py run: one tiny model, one loop with torchft, one with plain processes.

    training.py --loop=torchft --folder=F      a replica group of one worker; torchft's Manager averages the gradients
    training.py --loop=ddp --folder=F          a rank of a plain job; checkpoints of rank 0, from which all ranks resume

A step sleeps `step_s`, which stands for the time on a GPU, then computes a small forward and backward pass, averages
the gradient over all groups or ranks, and updates the weights. The training never ends by itself.

Each process appends to F/lines-REPLICA: one line when its script starts, before torch is imported, and one for each
step that it commits. All measures come from these lines. REPLICA is REPLICA_GROUP_ID in the loop with torchft, else
RANK. The rest is set by whoever launches it, as torchrun does: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; with torchft
also TORCHFT_LIGHTHOUSE. The gradient is averaged by one explicit allreduce in both loops: torch's
DistributedDataParallel would import torch._dynamo, a second of CPU time in every process.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing torch takes a second, and the first line is to be written before
    import torch

WIDTH = 256
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Settings:
    """What the training does; the same for all contenders of a run."""

    folder: str  # of the lines and of the checkpoint
    step_s: float = 0.2  # the sleep of each step
    batch: int = 8  # samples of each replica and step
    checkpoint_every: int = 25  # steps; only the plain loop saves checkpoints

    def arguments(self) -> list[str]:
        """Return the command line's form."""
        return [f"--{field.name.replace('_', '-')}={getattr(self, field.name)}" for field in fields(self)]


class Lines:
    """Appends the lines of one process."""

    def __init__(self, settings: Settings, replica: int) -> None:
        self.replica, self.batch = replica, settings.batch
        path = Path(settings.folder) / f"lines-{replica}"
        self._file = path.open("a", buffering=1)
        # /proc/PID/stat's start time: with it a reader knows a later process with the same pid from this one.
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        self._write({"started": int(started)})

    def committed(self, step: int, lineage: int, participants: int) -> None:
        """Write that this process has committed a step."""
        line = {"step": step, "lineage": lineage, "participants": participants, "samples": participants * self.batch}
        self._write(line)

    def _write(self, line: dict[str, int]) -> None:
        head = {"time": time.time(), "replica": self.replica, "pid": os.getpid()}
        self._file.write(json.dumps(head | line) + "\n")


class Model:
    """Linear regression. Its state carries a number drawn at random when the weights were: the lineage of its steps."""

    def __init__(self) -> None:
        import torch

        self.weights = torch.zeros(WIDTH, requires_grad=True)
        self.lineage = int.from_bytes(os.urandom(6), "big")

    def gradient(self, settings: Settings, replica: int, step: int) -> torch.Tensor:
        """Compute one step's gradient of one replica: the sleep, and a forward and a backward pass."""
        import torch

        time.sleep(settings.step_s)
        data = torch.Generator().manual_seed(1_000_003 * replica + step)
        x = torch.randn(settings.batch, WIDTH, generator=data)
        self.weights.grad = None
        (x @ self.weights - x.sum(1)).square().mean().backward()
        assert self.weights.grad is not None
        return self.weights.grad

    def update(self, gradient: torch.Tensor) -> None:
        """Descend along the averaged gradient."""
        import torch

        with torch.no_grad():
            self.weights -= LEARNING_RATE * gradient

    def state_dict(self) -> dict[str, object]:
        """Return what a joining group copies."""
        return {"weights": self.weights.detach(), "lineage": self.lineage}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over the state of a live group: from here on the steps are of its lineage."""
        import torch

        with torch.no_grad():
            self.weights.copy_(state["weights"])
        self.lineage = int(str(state["lineage"]))


def train_with_torchft(settings: Settings) -> None:
    """Train as one replica group of one worker, with torchft and its defaults."""
    lines = Lines(settings, int(os.environ["REPLICA_GROUP_ID"]))
    from torchft import Manager, ProcessGroupGloo

    model = Model()
    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=1,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=f"goodput_{lines.replica}",
    )
    while True:
        manager.start_quorum()  # goes on beside the forward pass
        gradient = model.gradient(settings, lines.replica, manager.current_step())
        manager.allreduce(gradient).wait()
        participants = manager.num_participants()
        if manager.should_commit():
            model.update(gradient)
            lines.committed(manager.current_step(), model.lineage, participants)


def train_plain(settings: Settings) -> None:
    """Train as one rank of a job that lives and dies as one, from its last checkpoint."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lines = Lines(settings, rank)
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model, step, saved = Model(), 0, Path(settings.folder) / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved)
        step = state.pop("step")
        model.load_state_dict(state | {"lineage": model.lineage})
    token = torch.tensor([model.lineage])
    dist.broadcast(token, 0)  # steps since this start are a lineage of their own: some of them may be repeated ones
    model.lineage = int(token)
    while True:
        gradient = model.gradient(settings, rank, step)
        dist.all_reduce(gradient)
        model.update(gradient / world)
        step += 1
        lines.committed(step, model.lineage, world)
        if rank == 0 and step % settings.checkpoint_every == 0:
            part = saved.with_suffix(".part")
            torch.save(model.state_dict() | {"step": step}, part)
            part.rename(saved)


LOOPS = {"torchft": train_with_torchft, "ddp": train_plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--loop", choices=list(LOOPS), required=True)
    for field in fields(Settings):
        kind = {"str": str, "float": float, "int": int}[str(field.type)]
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, required=True)
    args = vars(parser.parse_args())
    LOOPS[args.pop("loop")](Settings(**args))


if __name__ == "__main__":
    main()
