"""The smallest torchft training that can fail in every way: what most tests run instead of a real script."""

import argparse
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
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--fail-at", type=int, help="fail in this step, between quorum and allreduce")
parser.add_argument("--fail-group", type=int, default=0)
parser.add_argument("--fail-rank", type=int, default=0)
parser.add_argument("--fail-attempt", type=int, default=0)
parser.add_argument("--fail-how", choices=["exit3", "kill9", "raise", "segv", "hang"], default="exit3")
parser.add_argument("--children", type=int, default=0, help="how many to leave behind, one in its own session")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--noise-mb-s", type=float, default=0, help="text to print")
parser.add_argument("--steps-file", help="a JSON line per step this process has committed, in STEPS_FILE-GROUP-RANK")
args = parser.parse_args()


def fail() -> None:
    match args.fail_how:
        case "exit3":
            sys.exit(3)
        case "raise":
            raise RuntimeError(f"told to fail at step {args.fail_at}")
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(10_000)


to_fail = args.fail_at is not None and (args.fail_group, args.fail_rank, args.fail_attempt) == (GROUP, RANK, ATTEMPT)
if args.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen(["sleep", "600"], start_new_session=i == 0) for i in range(args.children)]
print("pid", os.getpid(), "children", *(child.pid for child in children), flush=True)

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def state_dict() -> dict:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_state_dict(state: dict) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"toy_{GROUP}",
    timeout=timedelta(seconds=10),
)
ddp = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-2))
if WORLD_SIZE > 1:
    dist.init_process_group("gloo")

while (step := manager.current_step()) < args.steps:
    data = torch.Generator().manual_seed(hash((args.seed, GROUP, RANK, step)))  # integers hash alike everywhere
    x = torch.randn(8, 16, generator=data)
    optimizer.zero_grad()
    participants = manager.num_participants()  # waits for the quorum: from here on the others count on us
    if to_fail and step >= args.fail_at:
        print(f"failing at step {step}: {args.fail_how}", flush=True)
        fail()
    time.sleep(args.step_time)
    sys.stdout.write("noise " * int(args.noise_mb_s * args.step_time * 1e6 / 6))
    loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    if WORLD_SIZE > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD_SIZE
    healed_to = manager.current_step()  # a heal moves it
    optimizer.step()
    now = manager.current_step()
    print(f"step {now} loss {loss.item():.3f} participants {participants}", flush=True)
    if args.steps_file and now == healed_to + 1:
        line = {"time": time.time(), "group": GROUP, "rank": RANK, "attempt": ATTEMPT, "step": now}
        line |= {"quorum": manager._quorum_id, "participants": participants}
        with open(f"{args.steps_file}-{GROUP}-{RANK}", "a") as file:
            file.write(json.dumps(line) + "\n")

weights = nn.utils.parameters_to_vector(model.parameters()).detach()
print(f"weights sha256={hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()}", flush=True)
manager.shutdown(wait=False)
