"""What does it cost to compare the groups (health.compare_every): in the step beside which a digest is taken?

    python benchmarks/digest.py                      the example's model, then one with 1 GB of weights
    python benchmarks/digest.py --models example     only the first
    python benchmarks/digest.py --device cuda        on a GPU

One process trains the example's GPT with AdamW, with real forward and backward passes and no network, so that nothing
else is measured. Steps with a digest and steps without take turns; the cost is the difference of their means, by 100
steps, the default of job=ddp. The digest alone, with all else at rest, is timed too, beside one read of the same bytes
(a sum of them as floats), which is what memory allows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "1"}

from gpt import GPT, adamw

from ftslurm.protocol.position import Position
from ftslurm.worker import digest
from ftslurm.worker.comparison import Comparison

MODELS = {"example": (64, 4, 4, 64, 8), "1 GB": (1792, 7, 28, 128, 2)}  # dim, heads, layers, context, batch


class Manager:
    """What the comparison sees of torchft's Manager: no network, each step is committed."""

    def __init__(self, state: object) -> None:
        self._step, self._user_state_dicts = 0, {"default": state}

    def start_quorum(self) -> None:
        pass

    def should_commit(self) -> bool:
        self._step += 1
        return True

    def _apply_pending_state_dict(self) -> None:
        pass

    def disallow_state_dict_read(self) -> None:
        pass


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
    compared.install(SimpleNamespace(Manager=Manager))
    took: dict[bool, list[float]] = {True: [], False: []}
    for step in range(steps + 3):
        blocks = torch.randint(0, 256, (batch, context + 1), device=device)
        wait(device)
        began = time.perf_counter()
        manager.start_quorum()
        model(blocks).backward()
        if manager.should_commit():
            optimizer.step()
        optimizer.zero_grad()
        wait(device)
        if step > 2:
            took[step % 2 == 0].append(time.perf_counter() - began)
    assert len(found) == len(set(found)) == (steps + 2) // 2, "a digest is missing, or two steps have the same one"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    tensors = digest.chosen(state, [optimizer], [])
    size = sum(one.nbytes for one in tensors.values()) / 1e9
    alone = timed(lambda: digest.digest(tensors), device)
    read = timed(lambda: [one.sum() for one in tensors.values()], device)
    plain, with_digest = (statistics.mean(took[kind]) for kind in (False, True))
    print(
        f"{name}: {len(tensors)} tensors, {size:.3f} GB (weights and AdamW's moments), {device}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"  digest alone {alone:.4f} s ({size / alone:.2f} GB/s); one read of the same bytes {read:.4f} s")
    print(f"  a step {plain:.4f} s; with a digest beside it {with_digest:.4f} s (means of {len(took[True])})")
    print(
        f"  every 100 steps: {(with_digest - plain) / plain:.2f} % of the time; "
        f"if nothing overlapped {alone / plain:.2f} %"
    )


def timed(call: object, device: torch.device, times: int = 3) -> float:
    """Return the least seconds of some calls."""
    seconds = []
    for _ in range(times):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    args = options.parse_args()
    for name in args.models:
        measure(name, args.device, args.steps if name == "example" else min(args.steps, 10))


if __name__ == "__main__":
    main()
