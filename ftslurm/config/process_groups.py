"""What averages the tensors between groups, and the variables that torch's process groups for NCCL read."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.config.schema import AUTO, Config

GLOO, NCCL, BABY_NCCL, NATIVE = "gloo", "nccl", "baby-nccl", "native"
HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
HEARTBEAT_S = 480  # torch's default
TRACE = "TORCH_FR_DUMP_TEMP_FILE"  # prefix of the files of the Flight Recorder; the rank follows
TRACE_PREFIX = "nccl-trace-rank-"


def process_group(config: Config) -> str:
    """Return which process group the scripts are to use between groups: gloo, nccl, baby-nccl or native."""
    kind = config.torchft.process_group
    if kind != AUTO:
        return kind
    return NCCL if config.groups.gpus else GLOO


def nccl_variables(config: Config) -> Mapping[str, str]:
    """Return the variables for torch's process groups with NCCL, those of job.env among them. Without GPUs: none.

    The ranks of a group that wait for one that hangs are ended by torch's watchdog only after torchft and the
    controller have had their time, and then with a trace of their last collectives.
    """
    if not config.groups.gpus:
        return {}
    ours = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # after a time-out end the process; aborting first would lose the trace
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",  # the trace needs it
        HEARTBEAT: str(max(HEARTBEAT_S, 2 * config.torchft.timeout_s)),
        "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(config.torchft.timeout_s),  # torchft would set it late, with a warning
    }
    return ours | {name: str(value) for name, value in config.job.env.items() if name in ours}
