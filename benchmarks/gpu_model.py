"""The training of the row `a model of 1B`: one group, real steps, and how long each of them took.

It prints the seconds of its steps as JSON, and the MB of its GPU that torch has allocated at most. It is plain torchft:
gpu_large.py starts it with ftslurm and without.
"""

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from gpt import GPT, adamw

PATIENCE = timedelta(seconds=60)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser()
    for name, value in (("dim", 2048), ("heads", 16), ("layers", 20), ("context", 1024), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=value if on_gpu else max(1, value // 16))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    args = parser.parse_args()
    device = torch.device("cuda" if on_gpu else "cpu")
    model = GPT(args).to(device)
    plain = adamw(model, args)
    manager = Manager(
        pg=(ProcessGroupNCCL if on_gpu else ProcessGroupGloo)(timeout=PATIENCE),
        min_replica_size=1,
        use_async_quorum=False,
        load_state_dict=lambda _: None,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"model_{os.environ['REPLICA_GROUP_ID']}",
        timeout=PATIENCE,
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, plain)
    took: dict[int, float] = {}  # by the step that was committed before
    while (step := manager.current_step()) < args.steps:
        blocks = torch.randint(0, 256, (args.batch, args.context + 1), device=device)
        torch.cuda.synchronize() if on_gpu else None
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
            loss = ddp(blocks)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize() if on_gpu else None
        took[step] = time.perf_counter() - began
    size = sum(p.numel() for p in model.parameters())
    mb = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0.0
    print("steps: " + json.dumps({"parameters": size, "MB": mb, "s": took}), flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
