"""Known noise is told from what a script says."""

from __future__ import annotations

import pytest

from ftslurm.run.log_noise import is_noise

NOISE = [
    b"[train_ddp_0:ff16e700-bb31/0 - step 61] Unable to reset NCCL flight recorder recording so traces will be wrong.",
    b'127.0.0.1 - - [23/Nov/2026 09:12:55] "GET /checkpoint/72/full HTTP/1.1" 200 -',
    b"/x/torch/distributed/_serialization.py:63: UserWarning: The given buffer is not writable, and PyTorch does not",
    b"  storage = torch.frombuffer(",
    b"/x/torch/serialization.py:2221: FutureWarning: `isinstance(treespec, LeafSpec)` is deprecated, use `isinstance(",
    b"  result = unpickler.load()",
    b"[W1123 09:12:26.445377654 reducer.cpp:1529] Warning: find_unused_parameters=True was specified in DDP construct",
    b"[rank1]:[W1123 09:12:26.4 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called b",
    b"[W1123 09:12:26.4 socket.cpp:460] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
    b"n1:4711:4790 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
]
TALK = [
    b"step 3 loss 0.2",
    b'127.0.0.1 - - [23/Nov/2026 09:12:55] "GET /checkpoint/72/full HTTP/1.1" 500 -',
    b"find_unused_parameters=True",
    b"n1:4711:4790 [0] NCCL WARN Call to connect failed: Connection refused",
    b"x.py:1: UserWarning: lr is 0",
    b"/x/train.py:7: FutureWarning: `isinstance(treespec, LeafSpec)` is deprecated, use `isinstance(treespec, TreeSpe",
    b"    result = unpickler.load()",  # of a traceback
]


@pytest.mark.parametrize("line", NOISE)
def test_what_healthy_runs_print_is_noise(line: bytes) -> None:
    assert is_noise(line)


@pytest.mark.parametrize("line", TALK)
def test_what_a_script_says_and_what_fails_is_not_noise(line: bytes) -> None:
    assert not is_noise(line)
