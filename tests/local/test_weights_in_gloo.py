"""The clone of a weight is averaged while another thread writes it, as Gloo's does with a tensor on a GPU.

torch 2.11 and 2.13 die of it within a second, unless the tensor needs no gradient (RunManager.allreduce).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torchft_managers

SCRIPT = f"""
import os, sys, threading, time
from datetime import timedelta
from types import SimpleNamespace

sys.path.append({str(Path(torchft_managers.__file__).parent)!r})
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions, ProcessGroup, ProcessGroupGloo
from torchft_managers import run_manager

store = dist.HashStore()
group = ProcessGroup(store, 0, 1)
group._set_default_backend(ProcessGroup.BackendType.GLOO)
gloo = ProcessGroupGloo(store, 0, 1, timedelta(seconds=30))
group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)

class Manager:
    _pg = _client = None

    def allreduce(self, tensor):
        shared[0] = tensor
        group.allreduce([tensor], AllreduceOptions()).wait()

def write():
    written = None
    while True:
        if (tensor := shared[0]) is not written:
            written = tensor
            for _ in range(20):
                tensor.copy_(average)

shared, average, weight = [None], torch.ones(64), torch.nn.Parameter(torch.zeros(64))
watchers = SimpleNamespace(progress=SimpleNamespace(reduces=lambda *_: None), quorums=SimpleNamespace(cover=id))
watchers.unhealed, watchers.commits = SimpleNamespace(), SimpleNamespace()
manager = run_manager(SimpleNamespace(Manager=Manager), watchers)()
threading.Thread(target=write, daemon=True).start()
sys.setswitchinterval(1e-6)
end = time.monotonic() + 3
while time.monotonic() < end:
    clone = weight.clone()
    manager.allreduce(clone)
while shared[0] is not None and not clone.eq(1).all():
    pass  # it is the same memory
print("alive", flush=True)
os._exit(0)
"""


def test_whoever_averages_weights_lives() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-3000:]
