"""The smallest torchft training that can fail in every way; most tests run it.

TOY_DDP=0 avoids torch's DDP and optimizers, which import torch._dynamo: a second of CPU time in every process.
"""

import argparse
import atexit
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

GROUP, RANK, WORLD_SIZE = (int(os.environ[name]) for name in ("REPLICA_GROUP_ID", "RANK", "WORLD_SIZE"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--step-time", type=float, default=0.02, help="seconds to sleep in each step")
parser.add_argument("--timeout", type=float, default=10, help="seconds that torchft waits for a peer")
parser.add_argument("--pause", type=float, default=0, help="seconds to sleep between two steps, as data loading does")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--fail-at", type=int, help="fail in this step, between quorum and allreduce")
parser.add_argument("--fail-group", type=int, default=0)
parser.add_argument("--fail-rank", type=int, default=0)
parser.add_argument("--fail-attempt", type=int, default=0)
parser.add_argument("--fail-how", choices=["exit0", "exit3", "kill9", "raise", "segv", "hang", "ecc"], default="exit3")
parser.add_argument("--children", type=int, default=0, help="how many to leave behind, one in its own session")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--noise-mb-s", type=float, default=0, help="text to print")
parser.add_argument("--no-resume", action="store_true", help="take no notice of checkpoints")
parser.add_argument("--open-end", action="store_true", help="go on until STEPS_FILE-end says after which step to end")
parser.add_argument("--beside", action="store_true", help="compute while the quorum is sought, torchft's default")
parser.add_argument("--slow-heal", type=float, default=0, help="seconds until a group that comes back is sent 32 MB")
parser.add_argument("--steps-file", help="a JSON line per step this process has committed, in STEPS_FILE-GROUP-RANK")
args = parser.parse_args()


def fail() -> None:
    match args.fail_how:
        case "exit0":
            sys.exit(0)
        case "exit3":
            sys.exit(3)
        case "raise":
            raise RuntimeError(f"told to fail at step {args.fail_at}")
        case "ecc":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`")
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(10_000)


def last_step() -> int:
    if not args.open_end:
        return args.steps
    try:
        with open(f"{args.steps_file}-end") as file:
            return int(file.read())
    except FileNotFoundError:
        return sys.maxsize


class Descent:
    """Gradient descent with momentum."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.speed = [torch.zeros_like(p) for p in parameters]

    def zero_grad(self, _: bool = True) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for p, speed in zip(self.parameters, self.speed, strict=True):
                speed.mul_(0.9).add_(p.grad)
                p.sub_(speed, alpha=1e-3)

    def state_dict(self) -> dict:
        return {"speed": self.speed}

    def load_state_dict(self, state: dict) -> None:
        for speed, loaded in zip(self.speed, state["speed"], strict=True):
            speed.copy_(loaded)


def digest() -> str:
    """Return the SHA-256 of all weights and of the optimizer's state, on which the next step depends."""
    speeds = optimizer.optim.speed if by_hand else [t for s in optimizer.optim.state.values() for t in s.values()]
    tensors = [*model.parameters(), *speeds]
    data = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
    return hashlib.sha256(bytes(data.view(torch.uint8).tolist())).hexdigest()


def average() -> None:
    """Average all gradients in one collective."""
    grads = [p.grad for p in model.parameters()]
    together = torch.cat([grad.flatten() for grad in grads])
    manager.allreduce(together).wait()
    for grad, mean in zip(grads, together.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(mean.view_as(grad))


to_fail = args.fail_at is not None and (args.fail_group, args.fail_rank, args.fail_attempt) == (GROUP, RANK, ATTEMPT)
if args.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen(["sleep", "600"], start_new_session=i == 0) for i in range(args.children)]
print("pid", os.getpid(), "children", *(child.pid for child in children), flush=True)

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


class Slow:
    """A part of the state that is not sent at once, and is too large for the buffers of a connection."""

    def __reduce__(self) -> tuple:
        print("sends its state slowly", flush=True)
        time.sleep(args.slow_heal)
        return bytes, (bytes(32 << 20),)


def state_dict() -> dict:
    slow = {"slow": Slow()} if args.slow_heal and manager.current_step() else {}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **slow}


def load_state_dict(state: dict) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=args.timeout)),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"toy_{GROUP}",
    timeout=timedelta(seconds=args.timeout),
)
print("heals by", type(manager._checkpoint_transport).__name__, flush=True)
by_hand = os.environ.get("TOY_DDP") == "0"
ddp = model if by_hand else DistributedDataParallel(manager, model)
parameters = list(model.parameters())
optimizer = Optimizer(manager, Descent(parameters) if by_hand else torch.optim.AdamW(parameters, lr=1e-2))
if WORLD_SIZE > 1:
    dist.init_process_group("gloo")
checkpointer = None
if os.environ.get("FTSLURM_CHECKPOINT_EVERY", "0") != "0" and not args.no_resume:
    from ftslurm.checkpoint import Checkpointer

    checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
    print("restored", checkpointer.restore(), flush=True)

while (step := manager.current_step()) < last_step():
    data = torch.Generator().manual_seed(hash((args.seed, GROUP, RANK, step)))  # integers hash alike everywhere
    x = torch.randn(8, 16, generator=data)
    optimizer.zero_grad()
    if not args.beside:
        manager.num_participants()  # waits for the quorum: from here on the other groups depend on this one
    if to_fail and step >= args.fail_at:
        print(f"failing at step {step}: {args.fail_how}", flush=True)
        fail()
    time.sleep(args.step_time)
    sys.stdout.write("noise " * int(args.noise_mb_s * args.step_time * 1e6 / 6))
    loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    if by_hand:
        average()
    if WORLD_SIZE > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD_SIZE
    participants = manager.num_participants()
    healed_to = manager.current_step()  # a heal moves it
    optimizer.step()
    now = manager.current_step()
    if checkpointer:
        checkpointer.step()
    print(f"step {now} loss {loss.item():.3f} participants {participants}", flush=True)
    if args.steps_file and now == healed_to + 1:
        line = {"time": time.time(), "group": GROUP, "rank": RANK, "attempt": ATTEMPT, "step": now}
        line |= {"quorum": manager._quorum_id, "participants": participants, "digest": digest()}
        with open(f"{args.steps_file}-{GROUP}-{RANK}", "a") as file:
            file.write(json.dumps(line) + "\n")
    time.sleep(args.pause)

if checkpointer:
    checkpointer.close()
weights = nn.utils.parameters_to_vector(model.parameters()).detach()
print(f"weights sha256={hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()}", flush=True)
manager.shutdown(wait=False)
atexit.register(os._exit, 0)  # saves half a second of CPU time, in which Python frees what torch has loaded
