"""What does it cost to compare the groups (health.compare_every): in the step beside which a digest is taken?

    python benchmarks/digest.py                      the example's model, then one with 1 GB of weights
    python benchmarks/digest.py --models example     only the first
    python benchmarks/digest.py --device cuda        on a GPU

One process trains the example's GPT with AdamW, with real forward and backward passes and no network, so that nothing
else is measured. Steps with a digest and steps without take turns; the cost is the difference of their medians, by
100 steps, the default of job=ddp. On a machine that does other work, the seconds of CPU say more. The digest alone is
timed too, beside one read of the same bytes (a sum of them as floats), which is what memory allows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "1"}

from gpt import GPT, adamw

from ftslurm.protocol.position import Position
from ftslurm.worker import digest
from ftslurm.worker.comparison import Comparison

MODELS = {"example": (128, 4, 3, 128, 16), "1 GB": (1792, 7, 6, 128, 2)}  # dim, heads, layers, context, batch


class Manager:
    """What the comparison sees of torchft's Manager: no network, each step is committed."""

    def __init__(self, state: object) -> None:
        self._step, self._user_state_dicts = 0, {"default": state}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(name: str, device: torch.device, steps: int) -> None:
    dim, heads, layers, context, batch = MODELS[name]
    args = argparse.Namespace(dim=dim, heads=heads, layers=layers, context=context, seed=0, lr=1e-3, weight_decay=0.0)
    model = GPT(args).to(device)
    optimizer = adamw(model, args)
    manager = Manager(lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    found = list[str]()
    compared = Comparison(sys.exit, Position(), every=2)
    compared.report = lambda _, one: found.append(one)
    took: dict[bool, list[tuple[float, float]]] = {True: [], False: []}  # seconds, and seconds of CPU
    for step in range(steps + 3):
        blocks = torch.randint(0, 256, (batch, context + 1), device=device)
        wait(device)
        began, cpu = time.perf_counter(), time.process_time()
        compared.step_begins(manager)  # the order of run_manager.py
        model(blocks).backward()
        compared.state_changes(manager)
        manager._step += 1
        compared.has_committed(manager)
        optimizer.step()
        optimizer.zero_grad()
        wait(device)
        if step > 2:
            took[step % 2 == 0].append((time.perf_counter() - began, time.process_time() - cpu))
    assert len(found) == len(set(found)) == (steps + 2) // 2, "a digest is missing, or two steps have the same one"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    tensors = digest.chosen(state, [optimizer], [])
    size = sum(one.nbytes for one in tensors.values()) / 1e9
    alone, alone_cpu = timed(lambda: digest.digest(tensors), device)
    read, read_cpu = timed(lambda: [one.sum() for one in tensors.values()], device)
    (plain, plain_cpu), (beside, beside_cpu) = (
        map(statistics.median, zip(*took[kind], strict=True)) for kind in (False, True)
    )
    what = f"{len(tensors)} tensors, {size:.3f} GB (weights and AdamW's moments)"
    print(f"{name}: {what}, {device}, {torch.get_num_threads()} threads; medians, in brackets seconds of CPU")
    print(f"  digest alone {alone:.4f} s ({alone_cpu:.4f}), one read of the same bytes {read:.4f} s ({read_cpu:.4f})")
    print(f"  a step {plain:.4f} s ({plain_cpu:.4f}), with a digest beside it {beside:.4f} s ({beside_cpu:.4f})")
    shares = ((beside - plain) / plain, (beside_cpu - plain_cpu) / plain_cpu, alone_cpu / plain_cpu)
    text = "{:.3f} % of the time, {:.3f} % of the CPU; from the digest alone {:.3f} %".format(*shares)
    least = f"below 1 % if a step takes {1e3 * (beside - plain):.0f} ms or more"
    print(f"  every 100 steps: {text}; {least}", flush=True)


def timed(call: Callable[[], object], device: torch.device, times: int = 3) -> tuple[float, float]:
    """Return the least seconds of some calls, and the least seconds of CPU."""
    seconds, cpu = [], []
    for _ in range(times):
        wait(device)
        began, used = time.perf_counter(), time.process_time()
        call()
        wait(device)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return min(seconds), min(cpu)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    args = options.parse_args()
    for name in args.models:
        measure(name, args.device, args.steps if name == "example" else min(args.steps, 6))


if __name__ == "__main__":
    main()
