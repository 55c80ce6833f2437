"""What a rank's client of torchft's manager raises when the manager is killed: a lost connection, whatever it did."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from fuzz import numbers

from ftslurm.lighthouse.stock import load_native
from ftslurm.protocol.causes import Says
from ftslurm.run import log_signs

SHORT = timedelta(seconds=5)
SERVER = """
import sys, time
from datetime import timedelta
from ftslurm.lighthouse.stock import load_native
server = load_native().ManagerServer(
    replica_id="a", lighthouse_addr=sys.argv[1], hostname="127.0.0.1", bind="127.0.0.1:0", store_addr="", world_size=2,
    heartbeat_interval=timedelta(seconds=0.1), connect_timeout=timedelta(seconds=5), quorum_retries=0,
)
print(server.address().rpartition(":")[2].strip("/"), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("seed", numbers(10, 60))
def test_a_client_whose_manager_is_killed_raises_what_is_known_as_a_lost_connection(seed: int) -> None:
    native = load_native()
    lighthouse = native.LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=100, quorum_tick_ms=20)
    address = "http://127.0.0.1:" + lighthouse.address().rpartition(":")[2]
    with subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        clients = [native.ManagerClient(url, connect_timeout=SHORT) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            trainings = [pool.submit(train, client, rank) for rank, client in enumerate(clients)]
            time.sleep(Random(seed).uniform(0.02, 0.3))
            server.kill()
            for training in trainings:
                error = training.exception(timeout=30)
                assert Says.ECHO in log_signs.says(f"{type(error).__name__}: {error}"), error
    lighthouse.shutdown()


def train(client: Any, rank: int) -> None:
    """Take steps until the manager is gone."""
    step, handle = 0, {"reconfigure_handle": ""} if hasattr(load_native().QuorumResult, "reconfigure_handles") else {}
    while True:
        client._quorum(
            group_rank=rank, step=step, checkpoint_metadata="", shrink_only=False, timeout=SHORT,
            commit_failures=0, init_sync=True, **handle,
        )  # fmt: skip
        step += client.should_commit(rank, step, True, SHORT)
