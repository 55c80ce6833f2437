"""A training that commits no step is reported, with what its groups wait for and a likely reason."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest
from harness import Backend, Run
from json_schema import check_event, check_status

SLURM = pytest.param("slurm", marks=pytest.mark.slurm)
CATCHES = """
import time, traceback
try:
    raise RuntimeError("no such method of torchft's\\x1b[2J")
except RuntimeError:
    traceback.print_exc()
print("going on without", flush=True)
time.sleep(600)
"""
ASKS = """
import os, time
from torchft import Manager, ProcessGroupGloo
if os.environ["REPLICA_GROUP_ID"] == "{sleeper}":
    print("still reading data", flush=True)
    time.sleep(600)
manager = Manager(
    pg=ProcessGroupGloo(), min_replica_size={least}, state_dict=dict, load_state_dict=dict.update, init_sync=False
)
while True:
    manager.start_quorum()
    manager.should_commit()
    time.sleep(0.1)
"""


def told(run: Run, word: str) -> dict[str, object]:
    """Return the first record, and check that the user sees it while it lasts."""
    record = run.wait_for("no_first_step")
    run.until(lambda: word in run.text, "the console's line")
    command = [sys.executable, "-m", "ftslurm", "status", "--json", str(run.dir)]
    done = subprocess.run(command, env=run.environ, capture_output=True, text=True, check=True, timeout=60)
    status = json.loads(done.stdout)
    check_status(status)
    assert any(word in words for words in status["warnings"])
    return record


PATIENT = ("health.lost_after_s=60",)  # so long a script waits for a quorum


def stop(run: Run) -> None:
    subprocess.run([sys.executable, "-m", "ftslurm", "stop", str(run.dir)], env=run.environ, check=True, timeout=60)
    run.finish(1, outcome="stopped")
    for line in run.events:
        check_event(line)


@pytest.mark.light
@pytest.mark.parametrize("backend", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_ranks_that_have_caught_their_error_are_told(backend: Backend) -> None:
    run = backend.start("groups.count=2", "job.longest_step_s=1", script=backend.script(CATCHES))
    record = told(run, "no script has asked for a quorum")
    assert [g["stage"] for g in record["groups"]] == ["script"] * 2  # type: ignore[attr-defined]
    run.until(lambda: len(run.named("no_first_step")) == 3, "it is told again")
    seconds = [float(str(e["seconds"])) for e in run.named("no_first_step")]
    assert seconds[0] >= 1
    assert all(later >= 1.9 * sooner for sooner, later in itertools.pairwise(seconds))
    assert "\x1b" not in run.text
    assert len(run.named("step_launched")) == 3  # nothing was ended
    stop(run)


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("sleeper", "least", "word", "doing"),
    [
        (1, 1, "1 of 2 groups ask for a quorum and may wait for the others", ("quorum", "script")),
        pytest.param(9, 3, "min_replica_size is above the number of groups", None, marks=pytest.mark.nightly),
    ],
)
def test_a_quorum_that_cannot_come_is_told_with_a_likely_reason(
    backend: Backend, sleeper: int, least: int, word: str, doing: tuple[str, ...] | None
) -> None:
    script = backend.script(ASKS.format(sleeper=sleeper, least=least))
    run = backend.start("groups.count=2", "groups.min=2", *PATIENT, "job.longest_step_s=3", script=script)
    record = told(run, word)
    if doing is not None:
        assert tuple(g["stage"] for g in record["groups"]) == doing  # type: ignore[attr-defined]
    stop(run)


@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_a_training_that_steps_is_not_told_and_one_that_begins_late_no_longer(backend: Backend) -> None:
    late = "import time; time.sleep(10)\n" + ASKS.format(sleeper=9, least=1)  # `status` is called before that
    run = backend.start("groups.count=2", *PATIENT, "job.longest_step_s=1", script=backend.script(late))
    told(run, "no step has been committed")
    run.wait_for("group_joined")
    command = [sys.executable, "-m", "ftslurm", "status", "--json", str(run.dir)]
    done = subprocess.run(command, env=run.environ, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["warnings"] == []
    stop(run)


PREPARES = """
import os, time
from light_worker import Manager
if os.environ["FTSLURM_LEADER"] == "1":
    time.sleep(11)
manager = Manager()
while manager.current_step() < 5:
    manager.start_quorum()
    manager.wait_quorum()
    manager.should_commit()
"""


@pytest.mark.light
@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_nobody_fails_who_waits_for_a_leader_that_prepares_data(backend: Backend, workers: int) -> None:
    """The limit for a quorum is 3 s; `groups.min` lets nobody begin alone."""
    script = backend.script(PREPARES)
    short = ("job.longest_step_s=1", "health.lost_after_s=3", "restart=never")
    run = backend.start("groups.count=3", "groups.min=3", f"groups.workers={workers}", *short, script=script).finish()
    assert [(e["cause"], e["step"]) for e in run.named("step_exited") if e["group"] is not None] == [("ok", 5)] * 3
