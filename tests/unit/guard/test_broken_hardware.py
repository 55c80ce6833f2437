"""Which lines of the kernel log and of a worker's log blame the hardware of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.guard import broken_hardware as hw
from ftslurm.guard.gpus import Gpu
from ftslurm.guard.kernel_log import Tail

OFF = "3,7,91500000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ECC = "4,8,92500000,-;NVRM: Xid (PCI:0000:AF:00): 48, pid=12, name=python, DBE (double bit error) ECC Error"
MEMORY = "3,9,93500000,-;Memory failure: 0x4c2d1: Sending SIGBUS to python:9 due to hardware memory corruption"
SCRIPT = "4,10,94500000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python, Ch 0000003e, MMU Fault"
OURS, OTHER = Gpu("0000:3b:00", "/dev/nvidia3", frozenset()), Gpu("0000:af:00", "/dev/nvidia5", frozenset())


@pytest.mark.parametrize(
    ("lines", "own", "told"),
    [
        ([OFF], [], "GPU 0000:3b:00 (/dev/nvidia3): XID 79, the GPU has fallen off the bus"),
        ([ECC, OFF, SCRIPT], [OURS, OTHER], "GPU 0000:3b:00 (/dev/nvidia3): XID 79, the GPU has fallen off the bus"),
        ([OFF, ECC], [OURS], "GPU 0000:3b:00 (/dev/nvidia3): XID 79, the GPU has fallen off the bus"),
        ([ECC], [OURS], ""),  # the GPU of another job
        ([ECC], [OURS, None], "GPU 0000:af:00 (/dev/nvidia5): XID 48, double-bit ECC error"),  # not known which
        ([SCRIPT], [OURS], ""),
        ([MEMORY], [OURS], f"the kernel says: {MEMORY.partition(';')[2]}"),
        ([], [], ""),
    ],
)
def test_the_latest_line_against_a_gpu_of_this_step_counts(lines: list[str], own: list[Gpu | None], told: str) -> None:
    assert hw.in_kernel_log(lines, [OURS, OTHER], own) == told


def test_a_gpu_without_a_known_device_is_named_by_its_address() -> None:
    assert hw.in_kernel_log([OFF], [], [OURS]) == "GPU 0000:3b:00: XID 79, the GPU has fallen off the bus"


@pytest.mark.parametrize(("rank", "who"), [(1, "local rank 1"), (None, "before it had a rank")])
def test_a_line_of_the_script_is_told_with_its_rank(rank: int | None, who: str) -> None:
    words = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert hw.in_log(f"step 7\n{words}\nbye\n", rank) == f"{who}: {words}"
    assert hw.in_log(f"[rank1]: {words}\n", rank) == f"{who}: [rank1]: {words}"
    data = 'sample 17: "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus"'
    data += "\n    raise OSError('GPU is lost') # Error: XID 79\n[rank0]:     raise OSError('ERROR: GPU is lost')"
    assert hw.in_log(f"{data}\nKeyError: 'GPU is lost'\nValueError: XID 79\n", rank) == ""


def test_only_what_the_kernel_has_written_lately_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    log = tmp_path / "kmsg"
    log.write_text(f"{MEMORY}\n")
    watch = hw.KernelWatch(Tail(str(log)))
    with log.open("a") as kernel:
        kernel.write(f"{OFF}\n")
    watch.update()
    assert watch.since(10.0) == [OFF]
    now = 111.0
    assert (watch.since(10.0), watch.since(20.0)) == ([], [OFF])


def test_full_shared_memory_is_named_and_a_half_empty_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk:
        f_bavail, f_frsize, f_blocks = 2, 1 << 20, 64

    monkeypatch.setattr("os.statvfs", lambda _: Disk)
    assert hw.shared_memory().startswith("/dev/shm is full: 2 MB of 64 MB are free")
    Disk.f_bavail = 32
    assert hw.shared_memory() == ""
