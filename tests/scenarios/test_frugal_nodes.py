"""Training on nodes whose kernel is old, or has no IPv6, and scripts that set up torch.distributed by themselves."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest
from cluster import free_ports
from harness import Backend, quoted
from old_kernel import on_an_old_kernel
from quick import ask

# PyTorch's tutorial sets both variables. Its store is gone when the worker ends.
OWN_STORE = """
import os
import socket
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", os.environ["PORT"]
del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
dist.init_process_group("gloo", rank=rank, world_size=world)
dist.barrier()
dist.destroy_process_group()
exec(os.environ["THEN"])
print("done", flush=True)
"""


@pytest.mark.parametrize(
    "then",
    [
        "pass",
        pytest.param("del os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']", marks=pytest.mark.nightly),
        pytest.param("os.environ.update(RANK=str(1 - rank), WORLD_SIZE='17')", marks=pytest.mark.nightly),
        pytest.param("os.environ.clear()", marks=pytest.mark.nightly),
    ],
)
def test_a_script_that_sets_master_port_by_itself_ends_as_it_should(then: str, local: Backend) -> None:
    with ExitStack() as claims:
        (port,) = free_ports(1, claims)
        words = ("groups.workers=2", "lighthouse=none", f"job.env.PORT='{port}'", f"job.env.THEN={quoted(then)}")
        run = local.start("groups.count=1", *words, script=local.script(OWN_STORE)).finish()
    assert [run.rank_log(0, rank=rank).count("done") for rank in range(2)] == [1, 1]
    assert [e["restarts"] for e in run.named("run_finished")] == [0]


@pytest.mark.nightly
def test_a_training_without_ipv6_and_pidfds_starts_heals_and_can_be_looked_into(local: Backend) -> None:
    run = on_an_old_kernel(lambda: local.start("groups.count=2", "groups.min=2", args={"open-end": True}))
    with pytest.raises(OSError, match="not supported"):
        on_an_old_kernel(lambda: socket.socket(socket.AF_INET6))
    with pytest.raises(OSError, match="not implemented"):
        on_an_old_kernel(lambda: os.pidfd_open(os.getpid()))
    run.wait_for_steps(5, groups=2)
    run.kill(group=1)
    run.wait_until_back(1)
    code, said = ask(run, "stacks", "--group", "0")
    assert code == 0, said
    assert "toy.py" in said
    run.end_soon()
    run.finish()
