"""Variables that a script sets after torch was imported: those that torch has read then are named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ftslurm.worker import read_variables

SCRIPT = """
import os
kind, read = type(os.environ), set()
get = kind.__getitem__
kind.__getitem__ = lambda environ, name: read.add(name) or get(environ, name)
import torch, torch.distributed, torchft
print(*read)
"""
PYTHON = {"TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_TRACE", "TORCH_DTRACE", "TORCH_COMPILE_DEBUG", "PYTORCH_JIT"}
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
def test_the_variables_that_torch_has_read_are_named(
    given: dict[str, str], late: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = dict(os.environ)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    said = read_variables.too_late(before)
    named = {word.rstrip(",.") for word in said.split() if word.startswith("job.env.")}
    assert named == {f"job.env.{name}" for name in late}
    assert not late or "torch is imported before the script begins" in said


def test_torch_reads_them_when_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    read = set(done.stdout.split())
    assert read >= PYTHON
    assert not read & set(IN_TIME) - {"PATH", "OMP_NUM_THREADS", "TMPDIR"}  # the last by dill, if it is installed
    before = dict(os.environ)
    for name in PYTHON:
        monkeypatch.setenv(name, "another value")
    assert all(name in read_variables.too_late(before) for name in PYTHON)
