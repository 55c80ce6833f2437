"""The kernel log: lines as the kernel writes them, and files in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.guard import kernel_log

OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (f"3,1834,91500000,-;{OFF}", 91.5),
        (OFF, None),
    ],
)
def test_a_fault_is_found_in_the_kernel_log(line: str, at: float | None) -> None:
    (fault,) = kernel_log.parse([f"6,1,80000000,-;{'x' * 9}", line, "6,2,91500001,-;usb 1-1: new device"])
    assert (fault.sign.name, fault.gpu, fault.text.endswith(OFF), fault.at) == ("XID 79", "0000:3b:00", True, at)


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("NVRM: GPU 0000:AF:00.0: GPU has fallen off the bus.", "0000:af:00"),
        ("amdgpu 0000:c3:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block", "0000:c3:00"),
        ("NVRM: Xid (00000000:D8:00): 48, DBE", "0000:d8:00"),
        ("Memory failure: 0x4c2d1: Sending SIGBUS to python:9 due to hardware memory corruption", None),
    ],
)
def test_the_gpu_is_named_by_its_pci_address(line: str, gpu: str | None) -> None:
    (fault,) = kernel_log.parse([line])
    assert fault.gpu == gpu


def test_a_log_that_may_not_be_read_is_not_a_log_without_faults(tmp_path: Path) -> None:
    assert kernel_log.read(str(tmp_path / "none")) is None
    (tmp_path / "kmsg").write_text("")
    assert kernel_log.read(str(tmp_path / "kmsg")) == []
    closed = kernel_log.Tail(str(tmp_path / "none"))
    assert (closed.readable, closed.lines()) == (False, [])


def test_a_tail_has_only_what_was_written_since(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"3,1,1000000,-;{OFF}\n")
    tail = kernel_log.Tail(str(path))
    assert tail.lines() == []
    with path.open("a") as log:
        log.write(f"3,2,2000000,-;{OFF}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
    assert [fault.at for fault in kernel_log.parse(tail.lines())] == [2.0]
    assert tail.lines() == []
    tail.close()


@pytest.mark.skipif(not os.access(kernel_log.KMSG, os.R_OK), reason="this user may not read the kernel log")
def test_the_real_kernel_log_is_read_without_waiting() -> None:
    lines = kernel_log.read()
    if lines is not None:  # a container may have it and not let anybody read it
        assert all(kernel_log._KMSG.match(line) for line in lines)
        assert kernel_log.Tail().lines() is not None
