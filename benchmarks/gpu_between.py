"""The training of gpu_nccl.py: replica groups that share a GPU, and NCCL between them.

NCCL takes processes with the same host and the same GPU for a mistake. Each group claims a host of its own
(NCCL_HOSTID), so NCCL connects them as it connects nodes, by sockets on loopback.

The weights after a step are the same whoever took part in it, bit by bit. So a run in which groups die and heal ends
with those of an undisturbed one. Each group adds a part of its own to its gradients; these parts cancel only if every
participant is summed up exactly once. All numbers have few bits, so that no sum is rounded.

    --die KIND GROUP ATTEMPT   this attempt kills itself: "collective" when an allreduce has begun, "before" when it
                               would begin, as soon as the file `die-GROUP-ATTEMPT` is in the run directory; "set-up"
                               before its process group connects, "connecting" 50 ms after that has begun
    --replay STEPS             only print the digest of the weights after so many steps, computed alone

It ends after the step that the file `end` in the run directory names. `at-GROUP` there has the group's last step.
"""

import argparse
import ctypes
import hashlib
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

GROUP = int(os.environ.get("REPLICA_GROUP_ID", 0))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
# Before NCCL reads them, once in a process.
os.environ |= {"NCCL_HOSTID": f"group-{GROUP}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torchft import (  # noqa: E402
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupBabyNCCL,
    ProcessGroupGloo,
    ProcessGroupNCCL,
)

KINDS = {"gloo": ProcessGroupGloo, "nccl": ProcessGroupNCCL, "baby-nccl": ProcessGroupBabyNCCL}
PATIENCE = timedelta(seconds=60)
PARTS = 4
WITHIN_S = 0.05  # of a set-up that takes some tenths of a second

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Model(nn.Module):  # type: ignore[misc]
    """Weights whose gradients are known: those of a step, and a part of each participant that cancels in the mean."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.place = torch.arange(size, device=device)
        first = (self.place % 127 - 63) / 64
        self.parts = nn.ParameterList(nn.Parameter(first + part) for part in range(PARTS))

    def forward(self, step: int, rank: int, participants: int) -> torch.Tensor:
        own = (self.place % 3 - 1) * ((2 * rank - participants + 1) / 8)
        total = torch.zeros((), device=device)
        for part, weights in enumerate(self.parts):
            mean = ((self.place * 7919 + step * 104729 + part * 31) % 255 - 127) / 128
            total = total + (weights * (mean + own)).sum()
        return total


def adamw(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def digest(model: Model) -> str:
    sha = hashlib.sha256()
    for weights in model.parameters():
        here = weights.detach().cpu().contiguous()
        sha.update(ctypes.string_at(here.data_ptr(), here.nbytes))
    return sha.hexdigest()


def replay(model: Model, steps: int) -> None:
    """Take the steps alone, without torchft and without communication."""
    optimizer = adamw(model)
    for step in range(steps):
        optimizer.zero_grad()
        model(step, 0, 1).backward()
        optimizer.step()


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal comes at once, but to another thread perhaps


def deadly(group: object, kind: str, order: Path) -> None:
    """Have this process kill itself in what its process group does; in an allreduce when the file is there."""
    name = "allreduce" if kind in ("collective", "before") else "_create_pg"
    if name == "_create_pg" and isinstance(group, ProcessGroupBabyNCCL):
        name = "configure"  # it is made in a child process
    work = getattr(group, name)

    def does(*args: object, **kwargs: object) -> object:
        if kind in ("collective", "before") and not order.exists():
            return work(*args, **kwargs)
        if kind == "connecting":
            threading.Timer(WITHIN_S, die).start()
        elif kind != "collective":
            die()
        done = work(*args, **kwargs)
        if kind == "collective":
            die()
        return done

    setattr(group, name, does)


def train(args: argparse.Namespace, model: Model) -> None:
    group = KINDS[os.environ["FTSLURM_PROCESS_GROUP"]](timeout=PATIENCE)
    plain = adamw(model)

    def load_state_dict(state: dict[str, object]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=group,
        min_replica_size=1,
        use_async_quorum=False,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"between_{GROUP}",
        timeout=PATIENCE,
    )
    folder, last, committed = Path(os.environ["FTSLURM_RUN_DIR"]), None, None
    for kind, who, attempt in args.die:
        if (int(who), int(attempt)) == (GROUP, ATTEMPT):
            deadly(group, kind, folder / f"die-{GROUP}-{ATTEMPT}")
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, plain)
    while last is None or manager.current_step() < last:
        time.sleep(args.pace)
        if last is None and (folder / "end").exists():
            last = int((folder / "end").read_text())
        optimizer.zero_grad()
        step, rank = manager.current_step(), manager.participating_rank()
        ddp(step, rank or 0, manager.num_participants()).backward()
        optimizer.step()
        if manager.current_step() > step:
            now = time.monotonic()
            if committed is not None and now > committed + 1:
                print(f"step {step + 1} came after {now - committed:.2f} s", flush=True)
            committed = now
            (part := folder / f"part-of-at-{GROUP}").write_text(str(step + 1))
            part.rename(folder / f"at-{GROUP}")
    torch.cuda.synchronize() if device.type == "cuda" else None
    print(f"between {type(group).__name__}, {manager.num_participants()} groups, on {device}", flush=True)
    print(f"weights sha256={digest(model)}", flush=True)
    manager.shutdown(wait=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", nargs=3, action="append", default=[], metavar=("KIND", "GROUP", "ATTEMPT"))
    parser.add_argument("--pace", type=float, default=0.02, help="seconds that a step takes longer")
    parser.add_argument("--replay", type=int)
    parser.add_argument("--size", type=int, default=2**20 if device.type == "cuda" else 2**12)
    args = parser.parse_args()
    model = Model(args.size).to(device)
    if args.replay is not None:
        replay(model, args.replay)
        print(f"weights sha256={digest(model)}")
        return
    print("pid", os.getpid(), flush=True)
    train(args, model)


if __name__ == "__main__":
    main()
