"""Judge the GPUs of a node: readings -> findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ftslurm.checks.finding import Finding, fail, ok
from ftslurm.checks.gpu_readings import GpuReading
from ftslurm.checks.node_facts import Hardware
from ftslurm.words import by_count, plural

RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node"
REPLACE = "drain the node; the GPU has to be replaced"


def present(gpus: Sequence[GpuReading], expected: int) -> Iterator[Finding]:
    """Yield whether the GPUs are there that the run uses.

    Args:
        expected: how many the run uses on a node; 0: it does not say.
    """
    for gpu in gpus:
        if gpu.problem:
            yield fail("gpus", f"GPU {gpu.index} does not answer: {gpu.problem}", RESET)
    sound = sum(not gpu.problem for gpu in gpus)
    answer = by_count(sound, "answers", "answer")
    if sound < expected:
        what = f"{sound} of the {plural(expected, 'GPU')} that the run uses on a node {answer}"
        yield fail("gpus", what, "see nvidia-smi on the node, and whether the job has asked for its GPUs")
    elif sound == len(gpus):
        kinds = ", ".join({f"{gpu.name}, driver {gpu.driver}" for gpu in gpus})
        yield ok("gpus", f"{plural(sound, 'GPU')} {answer} ({kinds})")


def idle(gpus: Sequence[GpuReading], most_used_mb: int) -> Iterator[Finding]:
    """Yield which GPUs others use."""
    fix = "end these processes, or ask for whole nodes (cluster.sbatch={exclusive: true}); or --skip idle"
    used = [gpu for gpu in gpus if gpu.processes or (gpu.used_mb or 0) > most_used_mb]
    for gpu in used:
        who = f"a process that is not seen ({gpu.used_mb} MiB)"
        if pids := gpu.processes:
            who = f"{len(pids)} other processes (PID {', '.join(map(str, pids[:4]))})"
        yield fail("idle", f"GPU {gpu.index} is in use by {who}", fix)
    if gpus and not used:
        yield ok("idle", "nobody uses the GPUs")


def memory(gpus: Sequence[GpuReading]) -> Iterator[Finding]:
    """Yield which GPUs have memory errors."""
    problems = [problem for gpu in gpus if (problem := _memory_problem(gpu)) is not None]
    yield from (fail("memory", *problem) for problem in problems)
    known = sum(None not in (gpu.ecc, gpu.is_pending) for gpu in gpus)
    if known and not problems:
        yield ok("memory", f"no uncorrected error and no pending repair of {plural(known, 'GPU')}")


def _memory_problem(gpu: GpuReading) -> tuple[str, str] | None:
    """Return what is wrong with the memory of a GPU, and what to do."""
    if gpu.rows_failed:
        return f"GPU {gpu.index}: replacing a memory row has failed: no spare row is left", REPLACE
    if gpu.ecc:
        return f"GPU {gpu.index} has had {gpu.ecc} uncorrected ECC errors since its last reset", RESET
    if gpu.is_pending:
        return f"GPU {gpu.index} has to be reset to replace bad memory (row remap or page retirement pending)", RESET
    return None


def links(gpus: Sequence[GpuReading]) -> Iterator[Finding]:
    """Yield which GPUs have fewer active NVLinks than the others of the node."""
    most = max((gpu.links or 0 for gpu in gpus), default=0)
    few = [gpu for gpu in gpus if gpu.links is not None and gpu.links < most]
    for gpu in few:
        what = f"GPU {gpu.index} has {gpu.links} active NVLinks, others of the node {most}"
        yield fail("nvlink", what, "see nvidia-smi nvlink --status, and the fabric manager")
    if most and not few:
        yield ok("nvlink", f"{most} active NVLinks of each GPU")


def state(there: Hardware, expected: int, most_used_mb: int | None) -> Iterator[Finding]:
    """Yield what is to be said of a node's GPUs.

    Args:
        expected: as for `present`.
        most_used_mb: memory in use of an idle GPU; None: others may use the GPUs.
    """
    if isinstance(there.readings, str):
        yield fail("gpus", f"nvidia-smi fails: {there.readings}", RESET)
    elif there.readings is None and there.gpus >= max(expected, 1):
        yield ok("gpus", "their state is not checked: there is no nvidia-smi here")
    elif there.gpus or expected:
        gpus = there.readings or []
        yield from present(gpus, expected)
        for check in (memory, links):
            yield from check(gpus)
        if most_used_mb is not None:
            yield from idle(gpus, most_used_mb)
