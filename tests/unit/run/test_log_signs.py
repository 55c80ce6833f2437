"""The signs of broken hardware: lines as drivers, the kernel, CUDA and NCCL print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftslurm.protocol.causes import Says
from ftslurm.run import log_signs


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "XID 79"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (double bit error) ECC Error", "XID 48"),
        ("NVRM: Xid (PCI:0000:3b:00): 64, pid=1, Row Remapper: unable to remap row", "XID 64"),
        ("NVRM: Xid (PCI:0000:3b:00): 74, pid='<unknown>', NVLink: fatal error detected on link 6", "XID 74"),
        ("NVRM: Xid (PCI:0000:3b:00): 95, pid=42, Uncontained: FBHUB. RST: Yes, D-RST: No", "XID 95"),
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=42, Timeout after 6s of waiting for RPC response from GPU0", "XID 119"),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_SRC_TRACK Fatal XC0 i0 Link 72 (0x00000004)", "XID 145"),
        ("NVRM: Xid (PCI:0000:cb:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
         "XID 154"),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "SXid"),
        (":0:rocdevice.cpp:2726: Callback: Queue aborting with error : HSA_STATUS_ERROR_HARDWARE_EXCEPTION: An HSAIL",
         "HW exception"),
        ("HW Exception by GPU node-4 (Agent handle: 0x55d0) reason :GPU Hang", "HW exception"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver mismatch"),
        ("NVRM: Xid (0000:03:00): 48, an older driver", "XID 48"),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "GPU lost"),
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system", "GPU lost"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error"),
        ("n2:71:102 [0] misc/strongstream.cc:42 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
         "uncorrectable ECC error"),
        ("cudaErrorECCUncorrectable: 214", "uncorrectable ECC error"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error"),
        ("RuntimeError: HIP error: hipErrorECCNotCorrectable", "uncorrectable ECC error"),
        ("amdgpu 0000:c3:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block", "amdgpu RAS"),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "NVLink error"),
        ("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", "NVLink error"),
        ("Memory failure: 0x4c2d1: Sending SIGBUS to python:9 due to hardware memory corruption", "memory error"),
        ("mce: Uncorrected hardware memory error in user-access at 3f7a00", "memory error"),
        ("mlx5_core 0000:5e:00.0: mlx5_health_compromised: device's health compromised - reached miss count",
         "network card"),
        ("RuntimeError: CUDA error: system not yet initialized", "no usable GPU"),
    ],
)  # fmt: skip
def test_a_sign_of_broken_hardware_blames_the_node(line: str, name: str) -> None:
    sign = log_signs.find(line)
    assert sign is not None
    assert sign.name == name


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", True),
        ("torch.distributed.DistBackendError: NCCL error, unhandled system error, NCCL version 2.27.5", True),
        ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", True),
        ("NET/IB : mlx5_0:1 Got completion from peer 10.0.0.4<3> with status=12 error", True),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=42, name=python, Graphics SM Warp Exception", False),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=42, name=python, Ch 0000003e, MMU Fault", False),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=42, name=python, Ch 00000018", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("RuntimeError: CUDA error: device-side assert triggered", False),
        ("RuntimeError: No CUDA GPUs are available", False),
        ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", False),
        ("CUDA error: no CUDA-capable device is detected", False),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", False),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", False),
        ("AssertionError: Torch not compiled with CUDA enabled", False),
        ("RuntimeError: CUDA error: invalid device ordinal", False),
        ("RuntimeError: No HIP GPUs are available", False),
        ("NVRM: Xid (PCI:0000:3b:00): 9999, a future one", False),
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=1, Row Remapper: New row marked for remapping, reset gpu", False),
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=42, name=python3, Contained: SM (0x1). RST: No", False),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 04", False),
        (
            "NVRM: Xid (PCI:0000:cb:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)",
            False,
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV", False),
        ("NET/IB : Got completion from peer 10.1.0.4<42> with status=12 opcode=0 len=0 vendor err 129", True),
        ("NET/IB : mlx5_2:1 Got async event : port error", True),
        ("NET/OFI Request 0x7f completed with error. RC: 113. Error: 15 (No route to host)", True),
        ("Memory access fault by GPU node-4 (Agent handle: 0x7f) on address 0x7f. Reason: Unknown.", False),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", False),
    ],
)
def test_what_is_mistaken_for_broken_hardware_does_not_blame_the_node(line: str, network: bool) -> None:
    assert log_signs.find(line) is None
    assert (Says.BROKEN in log_signs.says(line), Says.NETWORK in log_signs.says(line)) == (False, network)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: no such layer",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.4]:21157",
        "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
        "transaction Xid 79 of the data base",
        "step 79 loss 0.48",
        "EDAC MC0: 0 UE memory read error",
        "",
    ],
)
def test_an_ordinary_line_says_nothing_about_hardware(line: str) -> None:
    assert log_signs.find(line) is None


def test_the_docs_list_every_sign() -> None:
    page = (Path(__file__).parents[3] / "docs" / "causes.md").read_text().partition("## Broken hardware")[2]
    (row,) = re.findall(r"^- \*\*node\*\*: [^.]*\.(.*?)\.$", page, re.DOTALL | re.MULTILINE)
    listed = {re.sub(r"^(?:XID )?(?=\d)", "XID ", name) for name in " ".join(row.split()).split(", ")}
    signs = [*log_signs.XIDS.values(), *(sign for _, sign in log_signs.WORDS)]
    assert listed == {sign.name for sign in signs}
    assert len(listed) == len(signs)
