"""Lets the GPUs of this node work: `python -m ftslurm.checks.gpu_trial WORK`, a process for each GPU.

Each GPU multiplies matrices for a second; a product is compared with itself and with the CPU's. Then all GPUs of the
node sum a tensor. Its own processes do that, because a broken GPU can hang or crash them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ftslurm.checks import gpu_verdicts
from ftslurm.checks.finding import Finding, fail, ok
from ftslurm.security import programs
from ftslurm.words import listed, plural

SIZE = 4096  # of the matrices; on a CPU, for tests, smaller
BYTES = 64 << 20  # of the tensor that is summed
SLOW_SHARE = 0.7  # a GPU with less than this share of the median speed has failed


def run(
    gpus: int, skip: Sequence[str], seconds: float = 1.0, timeout_s: float = 80.0, device: str = "cuda"
) -> Iterator[Finding]:
    """Run the trial in processes of its own, which write their output to ours. Yield what it has shown.

    Args:
        skip: may name matmul and allreduce.
        seconds: how long each GPU multiplies.
        device: cpu only for tests: with gloo.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        work = [json.dumps([rank, gpus, folder, skip, seconds, device]) for rank in range(gpus)]
        commands = [programs.module("ftslurm.checks.gpu_trial", one) for one in work]
        children = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, env=env) for command in commands]
        deadline, codes, products = time.monotonic() + timeout_s, list[int](), list[tuple[float, str]]()
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        for child in children:
            child.kill()
            codes.append(child.wait())
        for rank, code in enumerate(codes):
            try:
                with open(os.path.join(folder, f"gpu-{rank}")) as file:
                    products.append(json.load(file))
            except OSError:
                what = f"GPU {rank} has given no product within {timeout_s:g} s (exit code {code})"
                yield fail("matmul", what, "see the log of the check; compare the driver with torch's CUDA version")
                return
    yield from judge(products)
    if failed := [rank for rank, code in enumerate(codes) if code]:
        fix = "see NCCL's words in the log of the check; NCCL_DEBUG=INFO tells more"
        yield fail("allreduce", f"the allreduce has failed on GPU {listed(failed)}", fix)
    elif gpus > 1:
        yield ok("allreduce", "the sum over the GPUs of the node is right")


def judge(products: Sequence[tuple[float, str]]) -> Iterator[Finding]:
    """Yield what the matrix products have shown.

    Args:
        products: of each GPU its TFLOP/s, and what was wrong with a product, or "".
    """
    speeds = sorted(tflops for tflops, _ in products)
    middle = speeds[len(speeds) // 2]
    bad = False
    for index, (tflops, wrong) in enumerate(products):
        if wrong:
            bad = True
            yield fail("matmul", f"GPU {index} has computed a wrong product: {wrong}", gpu_verdicts.REPLACE)
        elif tflops < SLOW_SHARE * middle:
            bad = True
            what = f"GPU {index} is slow: {tflops:.3g} TFLOP/s, the others {middle:.3g}"
            yield fail("matmul", what, "see its clocks and temperature: nvidia-smi -q -d PERFORMANCE")
    if not bad:
        yield ok("matmul", f"the products of {plural(len(speeds), 'GPU')} are right, {speeds[0]:.3g} TFLOP/s or more")


def _products(torch: Any, device: Any, seconds: float, size: int) -> tuple[float, str]:
    """Multiply matrices for a while. Return TFLOP/s, and what was wrong with a product."""
    make = torch.Generator().manual_seed(7)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, generator=make).to(device, kind) for _ in range(2))
    out = first = a @ b
    first[0, 0].item()  # waits for the GPU, as below
    begun, count, took = time.monotonic(), 0, 0.0
    while took < seconds:
        for _ in range(10):
            out, count = a @ b, count + 1
        out[0, 0].item()
        took = time.monotonic() - begun
    tflops = count * 2 * size**3 / took / 1e12
    if not torch.equal(first, out):
        return tflops, "the same product was not the same twice"
    rows = a[:4].double().cpu() @ b.double().cpu()
    error = (out[:4].double().cpu() - rows).abs().max().item() / size**0.5
    return tflops, "" if error < 0.1 else f"it differs from the CPU's by {error:.3g} of its size"


def _reduce(torch: Any, rank: int, ranks: int, store: str, device: Any) -> None:
    """Sum a tensor among all ranks.

    Raises:
        RuntimeError: the sum is wrong, or the backend has failed.
    """
    from torch import distributed as dist

    cuda = device.type == "cuda"
    backend = dist.FileStore(store, ranks)  # no port for strangers to connect to
    dist.init_process_group("nccl" if cuda else "gloo", store=backend, rank=rank, world_size=ranks)
    tensor = torch.full((BYTES // 4 if cuda else 1 << 16,), float(rank + 1), device=device)
    dist.all_reduce(tensor)
    if not bool((tensor == ranks * (ranks + 1) / 2).all()):
        raise RuntimeError(f"rank {rank}: the sum is wrong")
    dist.destroy_process_group()


def main(work: str) -> None:
    """Take part in the trial with one GPU."""
    import torch

    rank, ranks, folder, skip, seconds, kind = json.loads(work)
    cuda = kind == "cuda"
    device = torch.device(kind, rank) if cuda else torch.device(kind)
    if cuda:
        torch.cuda.set_device(device)
    found = (0.0, "") if "matmul" in skip else _products(torch, device, seconds, SIZE if cuda else 64)
    with open(os.path.join(folder, f"gpu-{rank}"), "w") as file:
        json.dump(found, file)
    if ranks > 1 and "allreduce" not in skip:
        _reduce(torch, rank, ranks, os.path.join(folder, "store"), device)


if __name__ == "__main__":
    main(*sys.argv[1:])
