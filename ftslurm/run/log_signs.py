"""What errors mean: the words of drivers, the kernel, CUDA, NCCL, Gloo and torchft. Nobody else reads them. Pure.

`find` looks for a sign of broken hardware in a line of the kernel log or of a script's output: the attempt's cause is
`hardware` then, and the node is left out at once. Errors that are mostly a mistake of the script, or happen for several
reasons, are none.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ftslurm.protocol.causes import Says


class Sign(NamedTuple):
    """A known sign of broken hardware."""

    name: str  # "XID 79"
    meaning: str  # "the GPU has fallen off the bus"
    advice: str  # what to do about it


_RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node before it is used again"
_REPLACE = "drain the node; if it happens again after a reboot, the GPU or its slot is to be replaced"
_NVLINK = "drain the node and check its NVLinks and the fabric manager (nvidia-smi nvlink -e)"
_SETUP = "check nvidia-smi on the node and the fabric manager; if every node says so, the job has asked for no GPU"

XIDS = {
    number: Sign(f"XID {number}", *what)
    for number, what in {
        48: ("double-bit ECC error", _RESET),
        62: ("the GPU's internal micro-controller has halted", _RESET),
        64: ("remapping memory rows or retiring pages has failed", _REPLACE),
        74: ("NVLink error", _NVLINK),
        79: ("the GPU has fallen off the bus", _REPLACE),
        95: ("uncontained ECC error", _RESET),
        119: ("the GPU's system processor (GSP) does not answer", _RESET),
        120: ("error of the GPU's system processor (GSP)", _RESET),
        140: ("ECC error that was not recovered", _RESET),
        143: ("the GPU cannot be initialized", _REPLACE),
        154: ("the GPU must be reset, or the node rebooted", _RESET),
        **dict.fromkeys(range(144, 151), ("NVLink error", _NVLINK)),
        158: ("fatal timeout of the GPU", _RESET),
    }.items()
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

# Words of drivers, the kernel, CUDA and NCCL. The first that matches counts.
WORDS: tuple[tuple[str, Sign], ...] = (
    (
        r"fallen off the bus|\bGPU is lost\b",
        Sign("GPU lost", "the GPU has fallen off the bus", _REPLACE),
    ),
    (
        r"uncorrectable ECC error|\w*ECC_?(Uncorrectable|NotCorrectable)\b",
        Sign("uncorrectable ECC error", "the GPU's memory has lost data", _RESET),
    ),
    (
        r"\bSXid\b",
        Sign("SXid", "an NVSwitch has failed", _NVLINK),
    ),
    (
        r"HSA_STATUS_ERROR_HARDWARE_EXCEPTION|\bHW Exception by GPU\b",
        Sign("HW exception", "an AMD GPU has failed or hangs", "drain the node; see rocm-smi"),
    ),
    (
        r"Driver/library version mismatch",
        Sign("driver mismatch", "the driver was updated without a reboot", "reboot the node"),
    ),
    (
        r"amdgpu.*uncorrectable hardware error",
        Sign("amdgpu RAS", "an uncorrectable error of an AMD GPU", "drain the node; see rocm-smi"),
    ),
    (
        r"uncorrectable NVLink error|\w*NVLINK_?UNCORRECTABLE\b|peer GPU memory over nvlink or a hardware error",
        Sign("NVLink error", "an NVLink has failed", _NVLINK),
    ),
    (
        r"hardware memory corruption|uncorrected hardware memory error|\bEDAC MC\d+: [1-9]\d* UE\b",
        Sign("memory error", "the node's memory has lost data", "drain the node; see its event log"),
    ),
    (
        r"mlx5_core.*(health compromised|fatal error|health poll failed)",
        Sign("network card", "the InfiniBand card has failed", "drain the node; see mlxlink, ibstat"),
    ),
    (
        r"system not yet initialized",  # CUDA says "no GPU" also to a script that asked for none, or hides them
        Sign("no usable GPU", "CUDA finds no usable GPU on the node", _SETUP),
    ),
)


@lru_cache(maxsize=1024)
def find(line: str) -> Sign | None:
    """Return the sign of broken hardware in a line of the kernel log or of a script's output; None: there is none."""
    if _OF_THE_SCRIPT.match(line) or _NOT_FATAL.search(line):
        return None
    if match := _XID.search(line):
        return XIDS.get(int(match[1]))
    return next((sign for words, sign in WORDS if re.search(words, line, re.IGNORECASE)), None)


# Errors that ranks raise because a peer has died (Gloo, NCCL, TCPStore, sockets): not the cause of the failure.
_ECHO = re.compile(
    r"(?i)connection (was likely )?(closed|reset|refused|aborted)|broken pipe|read error|transport error|"
    r"connectFullMesh|(recv, got|send, sent) 0 bytes|nccl(Remote|System)Error|unhandled system error|"
    r"remote process (exit|has terminated)|h2 protocol error|error reading a body|status: (unavailable|cancelled)|"
    r"timed out waiting \d+ ?ms for (recv|send)|DistStoreError|recvValue failed|communicator was aborted"
)
# What torchft 0.2.0 raises when the Lighthouse does not answer: a gRPC status, or its own message for a failed dial.
_LIGHTHOUSE = re.compile(r"(?i)lighthouse|failed to connect to http|status: (Cancelled|Unavailable|DeadlineExceeded)")
# What torchft 0.2.0 raises when the others have not come in time: to a quorum, or within a group.
_TIMEOUT = re.compile("Timeout expired")
# What NCCL says if a connection or a system call has failed; a peer that has vanished looks the same.
_NETWORK = re.compile(
    r"(?i)ncclSystemError|ncclRemoteError|unhandled system error|NET/OFI.*\berror\b"
    r"|NET/IB.*\b(completion .*err(or)?\b|async event ?: ?(port|.*fatal))"
)


def says(error: str | None) -> frozenset[Says]:
    """Return what an error says of how a task has ended."""
    error = error or ""
    signs = ((_ECHO, Says.ECHO), (_LIGHTHOUSE, Says.LIGHTHOUSE), (_TIMEOUT, Says.TIMEOUT))
    said = {what for pattern, what in signs if pattern.search(error)}
    if find(error) is not None:
        said.add(Says.BROKEN)
    elif _NETWORK.search(error) and not _OF_THE_SCRIPT.match(error):
        said.add(Says.NETWORK)
    return frozenset(said)
