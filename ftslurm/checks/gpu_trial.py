"""Lets the GPUs of this node work: `python -m ftslurm.checks.gpu_trial all WORK`; prints a line of JSON.

Each GPU multiplies matrices for a second; a product is compared with itself and with the CPU's. Then all GPUs of the
node sum a tensor, with one process for each. This is a process of its own, because a broken GPU can hang or crash it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ftslurm.checks import gpu_verdicts
from ftslurm.checks.finding import Finding, fail, ok
from ftslurm.security import programs
from ftslurm.words import listed, plural

SIZE = 4096  # of the matrices; on a CPU, for tests, smaller
BYTES = 64 << 20  # of the tensor that is summed
SLOW_SHARE = 0.7  # a GPU with less than this share of the median speed has failed
RESULT = "trial: "  # begins the line of the result


@dataclass(frozen=True)
class Trial:
    """What the trial has shown."""

    tflops: Sequence[float] = ()  # of each GPU
    wrong: Sequence[str] = ()  # of each: what was wrong with a product, or ""
    allreduce: str | None = None  # what was wrong with the sum, or ""; None: there is one GPU, or it was left out
    problem: str = ""  # why there is no result


def run(skip: Sequence[str], seconds: float = 1.0, timeout_s: float = 80.0, device: str = "cuda") -> Trial:
    """Run the trial in a process of its own, which writes its output to ours.

    Args:
        skip: may name matmul and allreduce.
        seconds: how long each GPU multiplies.
        device: cpu only for tests: two processes with gloo.
    """
    command = programs.module("ftslurm.checks.gpu_trial", "all", json.dumps([skip, seconds, device]))
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = child.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with the processes of the allreduce
        return Trial(problem=f"the GPUs have not finished their trial within {timeout_s:g} s")
    for line in said.splitlines():
        if line.startswith(RESULT):
            return Trial(**json.loads(line.removeprefix(RESULT)))
    return Trial(problem=f"the trial of the GPUs has ended without a result (exit code {child.returncode})")


def judge(found: Trial) -> Iterator[Finding]:
    """Yield what the matrix products and the allreduce have shown."""
    if found.problem:
        yield fail("matmul", found.problem, "see the log of the check; compare the driver with torch's CUDA version")
        return
    middle = sorted(found.tflops)[len(found.tflops) // 2] if found.tflops else 0.0
    bad = False
    for index, (tflops, wrong) in enumerate(zip(found.tflops, found.wrong, strict=True)):
        if wrong:
            bad = True
            yield fail("matmul", f"GPU {index} has computed a wrong product: {wrong}", gpu_verdicts.REPLACE)
        elif tflops < SLOW_SHARE * middle:
            bad = True
            what = f"GPU {index} is slow: {tflops:.3g} TFLOP/s, the others {middle:.3g}"
            yield fail("matmul", what, "see its clocks and temperature: nvidia-smi -q -d PERFORMANCE")
    if found.tflops and not bad:
        count = plural(len(found.tflops), "GPU")
        yield ok("matmul", f"the products of {count} are right, {min(found.tflops):.3g} TFLOP/s or more")
    if found.allreduce:
        fix = "see NCCL's words in the log of the check; NCCL_DEBUG=INFO tells more"
        yield fail("allreduce", found.allreduce, fix)
    elif found.allreduce is not None:
        yield ok("allreduce", "the sum over the GPUs of the node is right")


def _products(torch: Any, device: Any, seconds: float, size: int) -> tuple[float, str]:
    """Multiply matrices for a while. Return TFLOP/s, and what was wrong with a product."""
    make = torch.Generator().manual_seed(7)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, generator=make).to(device, kind) for _ in range(2))
    first = a @ b
    _wait(torch, device)
    begun, count, out = time.monotonic(), 0, first
    while (took := time.monotonic() - begun) < seconds:
        for _ in range(10 if device.type == "cuda" else 1):
            out, count = a @ b, count + 1
        _wait(torch, device)
    tflops = count * 2 * size**3 / took / 1e12 if took else 0.0
    if not torch.equal(first, out):
        return tflops, "the same product was not the same twice"
    rows = a[:4].double().cpu() @ b.double().cpu()
    error = (out[:4].double().cpu() - rows).abs().max().item() / size**0.5
    return tflops, "" if error < 0.1 else f"it differs from the CPU's by {error:.3g} of its size"


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reduce(torch: Any, rank: int, ranks: int, store: str, device: str) -> None:
    """Sum a tensor among all ranks.

    Raises:
        RuntimeError: the sum is wrong, or the backend has failed.
    """
    from torch import distributed as dist

    cuda = device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    backend = dist.FileStore(store, ranks)  # no port for strangers to connect to
    dist.init_process_group("nccl" if cuda else "gloo", store=backend, rank=rank, world_size=ranks)
    tensor = torch.full((BYTES // 4 if cuda else 1 << 16,), float(rank + 1), device=device)
    dist.all_reduce(tensor)
    if not bool((tensor == ranks * (ranks + 1) / 2).all()):
        raise RuntimeError(f"rank {rank}: the sum is wrong")
    dist.destroy_process_group()


def _allreduce(ranks: int, device: str) -> str:
    """Sum a tensor with one process for each GPU. Return what went wrong, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        work = (json.dumps([rank, ranks, store, device]) for rank in range(ranks))
        there = [
            subprocess.Popen(programs.module("ftslurm.checks.gpu_trial", "reduce", one), stdout=2, env=env)
            for one in work
        ]
        failed = [rank for rank, process in enumerate(there) if process.wait()]
    return f"the allreduce has failed on GPU {listed(failed)}" if failed else ""


def main(what: str, work: str) -> None:
    """Do the whole trial, or take part in the allreduce."""
    import torch

    if what == "reduce":
        _reduce(torch, *json.loads(work))
        return
    skip, seconds, kind = json.loads(work)
    cuda = kind == "cuda"
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] if cuda else [torch.device("cpu")] * 2
    if not devices:
        print(RESULT + json.dumps(asdict(Trial(problem="torch sees no GPU"))))
        return
    found, ranks = [], len(devices)
    if "matmul" not in skip:
        found = [_products(torch, device, seconds, SIZE if cuda else 64) for device in devices]
    if cuda:
        torch.cuda.empty_cache()
    allreduce = None if ranks < 2 or "allreduce" in skip else _allreduce(ranks, kind)
    trial = Trial([tflops for tflops, _ in found], [wrong for _, wrong in found], allreduce)
    print(RESULT + json.dumps(asdict(trial)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
