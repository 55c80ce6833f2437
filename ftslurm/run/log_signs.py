"""What errors mean: the words of drivers, the kernel, CUDA, NCCL, Gloo and torchft. Nobody else reads them. Pure.

`find` looks for a sign of broken hardware in a line of the kernel log or of a script's output. Whose fault it is
decides what follows:

    NODE      the attempt's cause is `hardware`; the node is left out at once
    NETWORK   the cause is `network`; a vanished peer looks the same, so the node is left out only if it happens again
    SCRIPT    mostly a mistake of the script: no cause of its own, listed so that nobody takes it for broken hardware
    UNCLEAR   no cause of its own either: it happens for several reasons, which `advice` names
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ftslurm.protocol.causes import Says


class Fault(Enum):
    """Whose fault a sign is."""

    NODE = "node"
    NETWORK = "network"
    SCRIPT = "script"
    UNCLEAR = "unclear"


class Sign(NamedTuple):
    """A known sign of broken hardware, or of what is mistaken for it."""

    name: str  # "XID 79"
    meaning: str  # "the GPU has fallen off the bus"
    fault: Fault
    advice: str  # what to do about it


_RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node before it is used again"
_CONTAINED = "only the processes there are hurt; reset the GPU when the node is free"
_REPLACE = "drain the node; if it happens again after a reboot, the GPU or its slot is to be replaced"
_DEBUG = "run the script with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1"
_NVLINK = "drain the node and check its NVLinks and the fabric manager (nvidia-smi nvlink -e)"
_SETUP = "check nvidia-smi on the node and the fabric manager; if every node says so, the job has asked for no GPU"

_XIDS: dict[int, tuple[str, Fault, str]] = {
    13: ("graphics engine exception", Fault.SCRIPT, _DEBUG),
    31: ("GPU memory page fault", Fault.SCRIPT, _DEBUG),
    43: ("the GPU has stopped processing", Fault.SCRIPT, _DEBUG),
    45: ("channels removed after an earlier error or a kill", Fault.SCRIPT, "look for the error before it"),
    48: ("double-bit ECC error", Fault.NODE, _RESET),
    62: ("the GPU's internal micro-controller has halted", Fault.NODE, _RESET),
    63: ("memory rows are remapped or pages retired after an ECC error", Fault.UNCLEAR, _CONTAINED),
    64: ("remapping memory rows or retiring pages has failed", Fault.NODE, _REPLACE),
    74: ("NVLink error", Fault.NODE, _NVLINK),
    79: ("the GPU has fallen off the bus", Fault.NODE, _REPLACE),
    92: ("many single-bit ECC errors", Fault.UNCLEAR, "they are corrected; watch the node"),
    94: ("contained ECC error", Fault.UNCLEAR, _CONTAINED),
    95: ("uncontained ECC error", Fault.NODE, _RESET),
    109: ("context switch timeout", Fault.UNCLEAR, "a kernel that never ends, or the GPU; see whether it moves along"),
    119: ("the GPU's system processor (GSP) does not answer", Fault.NODE, _RESET),
    120: ("error of the GPU's system processor (GSP)", Fault.NODE, _RESET),
    140: ("ECC error that was not recovered", Fault.NODE, _RESET),
    143: ("the GPU cannot be initialized", Fault.NODE, _REPLACE),
    154: ("the GPU must be reset, or the node rebooted", Fault.NODE, _RESET),
    **dict.fromkeys(range(144, 151), ("NVLink error", Fault.NODE, _NVLINK)),
    158: ("fatal timeout of the GPU", Fault.NODE, _RESET),
}
_XID = re.compile(r"(?:\bNVRM: Xid|\bXID)\b\s*(?:\((?:PCI:)?[0-9a-fA-F:.]+\))?:?\s+(\d{1,4})\b")
# What NVIDIA's driver and its switches say of an error that hurts nothing: "145, RLW_RXPIPE Nonfatal", "154, GPU
# recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)".
_NOT_FATAL = re.compile(r"(?i)\bnon-?fatal\b|recovery action changed .*\(none\)\s*$")
# Exceptions that no driver and no library for GPUs raises, whatever they say.
_OF_THE_SCRIPT = re.compile(
    r"(\[rank\d+\]: ?)?(Key|Value|Type|Index|Attribute|Assertion|Name|Import|ModuleNotFound|FileNotFound|Syntax"
    r"|NotImplemented|UnicodeDecode|ZeroDivision)Error\b"
)
_OTHER_XID = ("an error of the GPU's driver", Fault.UNCLEAR, "see NVIDIA's list of XIDs")

# Words of drivers, the kernel, CUDA and NCCL. The first that matches counts.
_WORDS: tuple[tuple[str, Sign], ...] = (
    (
        r"fallen off the bus|\bGPU is lost\b",
        Sign("GPU lost", "the GPU has fallen off the bus", Fault.NODE, _REPLACE),
    ),
    (
        r"uncorrectable ECC error|\w*ECC_?(Uncorrectable|NotCorrectable)\b",
        Sign("uncorrectable ECC error", "the GPU's memory has lost data", Fault.NODE, _RESET),
    ),
    (
        r"\bSXid\b",
        Sign("SXid", "an NVSwitch has failed", Fault.NODE, _NVLINK),
    ),
    (
        r"HSA_STATUS_ERROR_HARDWARE_EXCEPTION|\bHW Exception by GPU\b",
        Sign("HW exception", "an AMD GPU has failed or hangs", Fault.NODE, "drain the node; see rocm-smi"),
    ),
    (
        r"Driver/library version mismatch",
        Sign("driver mismatch", "the driver was updated without a reboot", Fault.NODE, "reboot the node"),
    ),
    (
        r"amdgpu.*uncorrectable hardware error",
        Sign("amdgpu RAS", "an uncorrectable error of an AMD GPU", Fault.NODE, "drain the node; see rocm-smi"),
    ),
    (
        r"uncorrectable NVLink error|\w*NVLINK_?UNCORRECTABLE\b|peer GPU memory over nvlink or a hardware error",
        Sign("NVLink error", "an NVLink has failed", Fault.NODE, _NVLINK),
    ),
    (
        r"hardware memory corruption|uncorrected hardware memory error|\bEDAC MC\d+: [1-9]\d* UE\b",
        Sign("memory error", "the node's memory has lost data", Fault.NODE, "drain the node; see its event log"),
    ),
    (
        r"mlx5_core.*(health compromised|fatal error|health poll failed)",
        Sign("network card", "the InfiniBand card has failed", Fault.NODE, "drain the node; see mlxlink, ibstat"),
    ),
    (
        r"no CUDA-capable device is detected|No CUDA GPUs are available|CUDA driver initialization failed"
        r"|CUDA unknown error - |system not yet initialized",
        Sign("no usable GPU", "CUDA finds no usable GPU on the node", Fault.NODE, _SETUP),
    ),
    (
        r"ncclSystemError|ncclRemoteError|unhandled system error|NET/OFI.*\berror\b"
        r"|NET/IB.*\b(completion .*err(or)?\b|async event ?: ?(port|.*fatal))",
        Sign(
            "NCCL network error",
            "a connection or a system call of NCCL has failed",
            Fault.NETWORK,
            "see NCCL_DEBUG=WARN, and ibstat on the node; limits: locked memory, open files, /dev/shm",
        ),
    ),
    (
        r"\bBus error\b|\bSIGBUS\b",
        Sign(
            "bus error",
            "mostly /dev/shm is full, or a mapped file was truncated; seldom the node's memory",
            Fault.UNCLEAR,
            "look at df /dev/shm; fewer or smaller DataLoader workers; in the kernel log: memory errors",
        ),
    ),
    (
        r"illegal memory access|device-side assert|misaligned address|illegal instruction was encountered"
        r"|unspecified launch failure|Memory access fault by GPU",
        Sign("CUDA kernel error", "a kernel of the script has failed", Fault.SCRIPT, _DEBUG),
    ),
)


@lru_cache(maxsize=1024)
def find(line: str) -> Sign | None:
    """Return the sign in a line of the kernel log or of a script's output; None: there is none."""
    if _OF_THE_SCRIPT.match(line):
        return None
    if match := _XID.search(line):
        sign: Sign | None = xid(int(match[1]))
    else:
        sign = next((sign for words, sign in _WORDS if re.search(words, line, re.IGNORECASE)), None)
    if sign is not None and sign.fault is Fault.NODE and _NOT_FATAL.search(line):
        return sign._replace(fault=Fault.UNCLEAR, advice="it is not fatal; watch the node")
    return sign


def xid(number: int) -> Sign:
    """Return what an XID of NVIDIA's driver says."""
    return Sign(f"XID {number}", *_XIDS.get(number, _OTHER_XID))


def table() -> list[Sign]:
    """Return all known signs, for the docs and the checks of nodes."""
    return [*map(xid, _XIDS), *(sign for _, sign in _WORDS)]


# Errors that ranks raise because a peer has died (Gloo, NCCL, TCPStore, sockets): not the cause of the failure.
_ECHO = re.compile(
    r"(?i)connection (was likely )?(closed|reset|refused|aborted)|broken pipe|read error|transport error|"
    r"connectFullMesh|(recv, got|send, sent) 0 bytes|nccl(Remote|System)Error|unhandled system error|"
    r"remote process (exit|has terminated)|h2 protocol error|error reading a body|status: (unavailable|cancelled)|"
    r"timed out waiting \d+ ?ms for (recv|send)|DistStoreError|recvValue failed|communicator was aborted"
)
# What torchft 0.2.0 raises when the Lighthouse does not answer: a gRPC status, or its own message for a failed dial.
_LIGHTHOUSE = re.compile(r"(?i)lighthouse|failed to connect to http|status: (Cancelled|Unavailable|DeadlineExceeded)")
_SAYS = {Fault.NODE: {Says.BROKEN}, Fault.NETWORK: {Says.NETWORK}}


def says(error: str | None) -> frozenset[Says]:
    """Return what an error says of how a task has ended."""
    sign = find(error) if error else None
    said = _SAYS.get(sign.fault, set[Says]()) if sign is not None else set()
    words = ((_ECHO, Says.ECHO), (_LIGHTHOUSE, Says.LIGHTHOUSE))
    return frozenset(said | {what for pattern, what in words if pattern.search(error or "")})
