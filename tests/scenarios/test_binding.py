"""Workers that are bound to CPUs (groups.bind): the affinity of real steps."""

from __future__ import annotations

import os
import re

import pytest
from harness import Backend, Run

from ftslurm.worker import topology

pytestmark = pytest.mark.light

SCRIPT = """
import os, pathlib, subprocess, time
mine = sorted(os.sched_getaffinity(0))
child = subprocess.run(["nproc"], capture_output=True, text=True).stdout.strip()
print("BOUND", *mine, "child", child, flush=True)
print("pid", os.getpid(), flush=True)
while not pathlib.Path("END").exists():
    time.sleep(0.05)
"""


def affinity(run: Run, group: int, attempt: int = 0) -> set[int]:
    """Return the CPUs on which a worker and all its threads may run, as its script and the kernel say."""
    pid = run.pid(group, attempt=attempt)
    threads = {frozenset(os.sched_getaffinity(int(name))) for name in os.listdir(f"/proc/{pid}/task")}
    said = re.search(r"BOUND ([\d ]+) child (\d+)", run.rank_log(group, attempt=attempt))
    assert said
    cpus = set(map(int, said[1].split()))
    assert threads == {frozenset(cpus)}
    assert int(said[2]) == len(cpus)  # child processes, as those of a DataLoader, inherit it
    return cpus


def test_workers_that_share_a_node_have_cores_of_their_own_a_standby_too(backend: Backend) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two CPUs")
    shared = ("groups.count=2", "groups.per_node=2", "lighthouse=none", "standby=one", "groups.bind=cores")
    run = backend.start(*shared, script=backend.script(SCRIPT))
    first, second = affinity(run, 0), affinity(run, 1)
    assert first.isdisjoint(second)
    assert first | second == allowed
    log = run.rank_log(1)
    assert f"ftslurm: bound to CPUs {topology.written(second)} (NUMA node" in log
    run.wait_for("step_ready", unit="standby-000")
    run.kill(1)
    took = run.wait_for("step_launched", group=1, attempt=1)
    assert took["standby"]
    assert affinity(run, 1, attempt=1) == second  # it was warm before it knew its place
    (backend.tmp_path / "END").touch()
    run.finish()
