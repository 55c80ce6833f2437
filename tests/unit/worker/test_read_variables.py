"""Variables that a script sets after torch was imported: those that torch has read then are named."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os
from ftslurm.worker import read_variables
os.environ["OMP_NUM_THREADS"] = "2"
with read_variables.noted():
    import torch, torch.distributed, torchft
before = dict(os.environ)
os.environ.update({given})
print(read_variables.too_late(before))
"""
LATE = {
    "TORCH_LOGS": "+distributed",
    "TORCH_TRACE": "/x",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "MKL_NUM_THREADS": "3",
    "OMP_NUM_THREADS": "3",
    "KMP_AFFINITY": "compact",
    "OPENBLAS_NUM_THREADS": "3",
}
IN_TIME = {
    "OMP_NUM_THREADS": "2",  # as it was
    "PATH": "/x",
    "TMPDIR": "/x",
    "NCCL_DEBUG": "INFO",
    "CUDA_VISIBLE_DEVICES": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_HOME": "/x",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(("given", "late"), [(LATE | IN_TIME | LATE, LATE), (IN_TIME, {})])
def test_the_variables_that_torch_has_read_are_named(given: dict[str, str], late: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(given=given)], capture_output=True, text=True, check=True
    )
    said = done.stdout
    named = {word.rstrip(",.") for word in said.split() if word.startswith("job.env.")}
    assert named == {f"job.env.{name}" for name in late}
    assert not late or "torch is imported before the script begins" in said
