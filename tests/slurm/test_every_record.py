"""A history with all that happens to a run, in which the controller dies at each record of its journal in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, Run
from test_promises import Facts, facts_of

pytestmark = [pytest.mark.slurm, pytest.mark.light, pytest.mark.nightly]
BLOCKS = 24  # a life takes more than a minute, since the RPCs of all that happens in it are limited


def live(cluster: Cluster, backend: Backend, mode: str, seq: int | None) -> tuple[Facts, Run]:
    """Train through a kill, a save, a drain, one more group, a drill and a lost node. Return what came of it.

    Args:
        seq: the record at which the controller dies; None: it lives.
    """
    settings = (f"cluster.kind={mode}", "groups.count=2", "groups.max=3", "health.lost_after_s=4")
    number = len(backend.runs)
    backend.environ["FTSLURM_TEST_KILL"] = str(backend.tmp_path / f"when{number}")
    if seq is not None:
        (backend.tmp_path / f"when{number}").write_text(str(seq))
    run = backend.start(*settings, script="light_saving.py", args={"open-end": True, "step-time": 0.1})
    run.wait_until_back(0, 1, attempt=0)
    run.kill(1)
    run.wait_until_back(1)
    run.tell("save")
    run.wait_for("checkpoint_saved")
    drained = run.node_of(1, 1)
    run.tell("drain", drained)
    run.wait_until_back(1, attempt=2)
    run.tell("scale", "3")
    run.wait_until_back(2, attempt=0)
    run.tell("inject", "kill", "--group", "1")
    run.wait_until_back(1, attempt=3)
    lost = run.node_of(2, 0)
    cluster.kill_node(lost)
    run.wait_until_back(2)
    run.end_soon()
    run.finish()
    if seq is not None and seq <= len(run.events):  # else it has been a shorter journal this time
        assert not (backend.tmp_path / f"when{number}").exists(), f"no controller has died at {seq}"
    assert [line["seq"] for line in run.events] == list(range(1, 1 + len(run.events)))
    return facts_of(run) | {"moved": (run.node_of(1, 2) != drained, run.node_of(2, 1) != lost)}, run


@pytest.mark.parametrize("mode", ["slurm", "array"])
@pytest.mark.parametrize("block", range(0, BLOCKS, 12))  # the others: by hand, before a release
def test_it_makes_no_difference_at_which_record_the_controller_dies(
    mode: str, block: int, new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=7, cpus=1)
    backend = slurm_on(cluster)
    expected, run = live(cluster, backend, mode, None)
    for seq in range(1 + block, len(run.events) - 1, BLOCKS):
        cluster = new_cluster(nodes=7, cpus=1)
        backend.environ.update(cluster.env)
        assert live(cluster, backend, mode, seq)[0] == expected, f"record {seq}: {run.events[seq - 1]}"
