"""Judge the GPUs of a node: readings -> findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ftslurm.doctor.finding import Finding, fail, ok, warn
from ftslurm.preflight.gpu_readings import GpuReading
from ftslurm.preflight.gpu_trial import Trial

RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node"
REPLACE = "drain the node; the GPU has to be replaced"


def present(gpus: Sequence[GpuReading], files: int, expected: int) -> Iterator[Finding]:
    """Yield whether the GPUs are there that the run uses.

    Args:
        files: number of NVIDIA's device files.
        expected: how many the run uses on a node; 0: it does not say.
    """
    for gpu in gpus:
        if gpu.problem:
            yield fail("gpus", f"GPU {gpu.index} does not answer: {gpu.problem}", RESET)
    sound = sum(not gpu.problem for gpu in gpus)
    if sound < expected:
        what = f"{sound} of the {expected} GPUs that the run uses on a node answer"
        what += f"; there are {files} device files" if files != sound else ""
        yield fail("gpus", what, "see nvidia-smi on the node, and whether the job has asked for its GPUs")
    elif all(not gpu.problem for gpu in gpus):
        kinds = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        yield ok("gpus", f"{sound} GPUs answer ({kinds})")
        if len({gpu.name for gpu in gpus}) > 1:
            yield warn("gpus", f"they are not all alike: {kinds}", "")


def idle(gpus: Sequence[GpuReading], most_used_mb: int) -> Iterator[Finding]:
    """Yield which GPUs others use."""
    busy = False
    for gpu in gpus:
        pids = gpu.processes or ()
        fix = "end these processes, or ask for whole nodes (cluster.sbatch={exclusive: true}); or --allow-busy"
        if pids:
            busy = True
            who = ", ".join(map(str, pids[:4]))
            yield fail("idle", f"GPU {gpu.index} is in use by {len(pids)} other processes (PID {who})", fix)
        elif gpu.used_mb is not None and gpu.used_mb > most_used_mb:
            busy = True
            yield fail("idle", f"{gpu.used_mb} MiB of GPU {gpu.index} are in use by a process that is not seen", fix)
    if gpus and not busy:
        yield ok("idle", "nobody uses the GPUs")


def memory(gpus: Sequence[GpuReading]) -> Iterator[Finding]:
    """Yield which GPUs have memory errors."""
    bad = False
    for gpu in gpus:
        problem = _memory_problem(gpu)
        if problem is not None:
            bad = True
            yield fail("memory", *problem)
        elif gpu.rows is not None and gpu.rows[1]:
            what = f"GPU {gpu.index}: {gpu.rows[1]} memory rows were replaced after uncorrectable errors"
            yield warn("memory", what, "watch it")
    known = [gpu for gpu in gpus if (gpu.ecc, gpu.rows, gpu.pages_pending) != (None, None, None)]
    if known and not bad:
        yield ok("memory", f"no uncorrected error and no pending repair of {len(known)} GPUs")


def _memory_problem(gpu: GpuReading) -> tuple[str, str] | None:
    """Return what is wrong with the memory of a GPU, and what to do."""
    if gpu.rows is not None and gpu.rows[3]:
        return f"GPU {gpu.index}: replacing a memory row has failed: no spare row is left", REPLACE
    if gpu.ecc:
        return f"GPU {gpu.index} has had {gpu.ecc} uncorrected ECC errors since its last reset", RESET
    if (gpu.rows is not None and gpu.rows[2]) or gpu.pages_pending:
        return f"GPU {gpu.index} has to be reset to replace bad memory (row remap or page retirement pending)", RESET
    return None


def links(gpus: Sequence[GpuReading]) -> Iterator[Finding]:
    """Yield which GPUs have fewer active NVLinks than the others of the node."""
    active = {gpu.index: sum(gpu.links) for gpu in gpus if gpu.links is not None}
    if not active or max(active.values()) == 0:
        return
    most = max(active.values())
    few = {index: count for index, count in active.items() if count < most}
    for index, count in few.items():
        what = f"GPU {index} has {count} active NVLinks, others of the node {most}"
        yield fail("nvlink", what, "see nvidia-smi nvlink --status, and the fabric manager")
    if not few:
        yield ok("nvlink", f"{most} active NVLinks of each GPU")


def speed(gpus: Sequence[GpuReading]) -> Iterator[Finding]:
    """Yield which GPUs slow themselves down."""
    for gpu in gpus:
        if gpu.slowed:
            heat = "" if gpu.celsius is None else f" at {gpu.celsius} C"
            what = f"GPU {gpu.index} slows itself down{heat} because of {' and '.join(gpu.slowed)}"
            yield warn("speed", what, "see the cooling and the power supply of the node")


def trial(found: Trial, slow_share: float) -> Iterator[Finding]:
    """Yield what the matrix products and the allreduce have shown.

    Args:
        slow_share: a GPU with less than this share of the median speed has failed.
    """
    if found.problem:
        yield fail("matmul", found.problem, "see the log of the check; compare the driver with torch's CUDA version")
        return
    middle = sorted(found.tflops)[len(found.tflops) // 2] if found.tflops else 0.0
    bad = False
    for index, (tflops, wrong) in enumerate(zip(found.tflops, found.wrong, strict=True)):
        if wrong:
            bad = True
            yield fail("matmul", f"GPU {index} has computed a wrong product: {wrong}", REPLACE)
        elif tflops < slow_share * middle:
            bad = True
            what = f"GPU {index} is slow: {tflops:.3g} TFLOP/s, the others {middle:.3g}"
            yield fail("matmul", what, "see its clocks and temperature: nvidia-smi -q -d PERFORMANCE")
    if found.tflops and not bad:
        yield ok(
            "matmul", f"the products of {len(found.tflops)} GPUs are right, {min(found.tflops):.3g} TFLOP/s or more"
        )
    if found.allreduce_problem:
        fix = "see NCCL's words in the log of the check; NCCL_DEBUG=INFO tells more"
        yield fail("allreduce", found.allreduce_problem, fix)
    elif found.allreduce_gb_s is not None:
        yield ok("allreduce", f"among the GPUs of the node: {found.allreduce_gb_s:.3g} GB/s")
