"""Known noise is told from what a script says."""

from __future__ import annotations

import logging

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


FORMATS = {
    "basicConfig": "%(levelname)s:%(name)s:%(message)s",
    "hydra.main": "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
    "as in the docs of logging": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
    "torchtitan": "[titan] %(asctime)s - %(name)s - %(levelname)s - %(message)s",
    "a table": "%(asctime)s | %(levelname)-8s | %(name)s:%(funcName)s:%(lineno)d - %(message)s",
    "JSON": '{"time": "%(asctime)s", "level": "%(levelname)s", "logger": "%(name)s", "message": "%(message)s"}',
    "JSON, the other way round": '{"name": "%(name)s", "levelname": "%(levelname)s", "msg": "%(message)s"}',
    "no name": "%(asctime)s %(levelname)s %(message)s",
    "no name and no level": "%(message)s",
}
MANAGER = "[train_ddp_0:ff16e700-bb31/0 - step 61] "
OF_TORCHFT = {
    **dict.fromkeys(
        (
            f"{MANAGER}should_commit=True enough_replicas=True, errored=None",
            f"{MANAGER}reconfiguring for quorum_id=3 store_prefixed_addr='127.0.0.1:4711/torchft/3/0'",
            f"{MANAGER}resetting fr recording for quorum id 3",
            f"{MANAGER}peers need recovery from us [1]",
            f"{MANAGER}healing required, fetching checkpoint metadata from recover_src_manager_address='x' max_step=61",
            f"{MANAGER}fetching checkpoint from recover_src_replica_rank=0 with checkpoint_metadata='http://n1:1'",
            f"{MANAGER}applying pending state dict",
            f"{MANAGER}Loaded state dict.",
        ),
        "torchft.manager",
    ),
    "fetching checkpoint from http://n1:4711/checkpoint/61/full took 0.0123s": "torchft.checkpointing.http_transport",
}
NAMED = {
    "a later version says this": "torchft.manager",
    "": "torchft_commits",
    "Preparing fragment=1": "torchft.local_sgd",
}


@pytest.mark.parametrize("form", FORMATS)
def test_what_torchft_logs_is_noise_in_every_format(form: str) -> None:
    formatter = logging.Formatter(FORMATS[form])
    names = "%(name)s" in FORMATS[form]
    for text, logger in (OF_TORCHFT | (NAMED if names else {})).items():
        for level in (logging.INFO, logging.DEBUG):
            line = formatter.format(logging.LogRecord(logger, level, "/x/y.py", 1, text, (), None))
            assert is_noise(line.encode()), line
        if level_is_shown := "%(levelname)" in FORMATS[form] and names and text in NAMED:
            line = formatter.format(logging.LogRecord(logger, logging.WARNING, "/x/y.py", 1, text, (), None))
            assert level_is_shown != is_noise(line.encode()), line


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "text", [f"{MANAGER}should_commit=False enough_replicas=True, errored=boom", "step 3", "uses torchft.manager", ""]
)
@pytest.mark.parametrize("logger", ["__main__", "my.torchft_train"])
def test_what_a_script_logs_is_not_noise(form: str, text: str, logger: str) -> None:
    record = logging.LogRecord(logger, logging.INFO, "/x/y.py", 1, text, (), None)
    line = logging.Formatter(FORMATS[form]).format(record)
    assert not is_noise(line.encode()), line


@pytest.mark.parametrize("line", NOISE)
def test_what_healthy_runs_print_is_noise(line: bytes) -> None:
    assert is_noise(line)


@pytest.mark.parametrize("line", TALK)
def test_what_a_script_says_and_what_fails_is_not_noise(line: bytes) -> None:
    assert not is_noise(line)
