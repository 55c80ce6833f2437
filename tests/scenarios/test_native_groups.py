"""torch's own process groups between the groups (torchft.process_group=native): groups die as with torchft's, and heal.

`make matrix` runs these with a torch and a torchft that have them (tests/versions.py).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch.distributed as dist
from harness import SCRIPTS, SLURM_BY_DAY, Backend, Run
from torchft import process_group

from ftslurm.worker import patch_fit
from ftslurm.worker.native_group import native_group

NEW = hasattr(dist.ProcessGroup, "reconfigure") and hasattr(process_group, "reconfigure_with_store")
needs_them = pytest.mark.skipif(not NEW, reason=f"needs torch 2.14 and torchft 0.3: {patch_fit.versions()}")
here = pytest.mark.parametrize("backend", ["local"], indirect=True)
TRAIN = {"open-end": True, "step-time": 0.1, "timeout": 60}  # torchft's default: nobody may wait for it
# Killed in the set-up of the second quorum's process group, while the others wait for its address.
DIES_IN_SET_UP = f"""
import os, runpy, signal, time
from ftslurm.worker import native_group
write, quorums = native_group.QuorumStore.set, []
def set(store, key, value):
    quorums.append(key)
    if len(quorums) == 2 and (os.environ["REPLICA_GROUP_ID"], os.environ["FTSLURM_ATTEMPT"]) == ("1", "0"):
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    write(store, key, value)
native_group.QuorumStore.set = set
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
"""


def train(backend: Backend, groups: int, *overrides: str, script: str | Path = "toy.py") -> Run:
    run = backend.start(f"groups.count={groups}", "torchft.process_group=native", *overrides, script=script, args=TRAIN)
    run.wait_for_steps(5, groups)
    return run


@needs_them
@SLURM_BY_DAY
def test_a_killed_group_costs_the_others_one_step(backend: Backend) -> None:
    run = train(backend, 4)
    run.kill(0)  # it has the store in which the quorum has met
    run.wait_until_back(0)
    run.kill(1)
    run.kill(2)
    run.wait_until_back(1, 2)
    last = run.end_soon()
    run.finish().check_training(last, survivors={3}, returned={0, 1, 2})
    assert [e["restarts"] for e in run.named("run_finished")] == [3]


@needs_them
@here
def test_survivors_leave_a_group_that_stands_still_in_a_collective(backend: Backend) -> None:
    run = train(backend, 3, "health.lost_after_s=5", "torchft.transport=process_group")
    run.kill(1, number=signal.SIGSTOP)
    run.wait_for("group_set_aside", group=1)
    steps = len(run.steps(0))
    run.until(lambda: len(run.steps(0)) > steps + 10, "the others go on")
    run.kill(1)
    run.wait_until_back(1)
    last = run.end_soon()
    run.finish().check_training(last, survivors={0, 2}, returned={1})


@needs_them
@here
def test_nobody_waits_for_a_group_that_dies_while_the_process_group_is_set_up(backend: Backend) -> None:
    run = train(backend, 3, script=backend.script(DIES_IN_SET_UP, "toy.py"))
    run.kill(2)
    run.wait_until_back(1, 2)
    last = run.end_soon()
    run.finish().check_training(last, survivors={0}, returned={1, 2})
    assert "is gone before all had connected" in run.rank_log(0)


@pytest.mark.skipif(NEW, reason=f"has them: {patch_fit.versions()}")
def test_a_script_is_told_that_torch_or_torchft_is_too_old() -> None:
    with pytest.raises(RuntimeError, match=r"need torch 2\.14 and torchft 0\.3: torchft.*, torch "):
        native_group("gloo")
