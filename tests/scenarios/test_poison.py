"""A fresh group, which has random weights, never heals others and never trains on alone.

tests/local/test_history_in_torchft.py shows what torchft alone does in each of these orders; docs/lighthouse.md lists
all. Both Lighthouses are tested: ours refuses such a quorum; with torchft's the worker exits before the step.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from harness import SCRIPTS, Backend, Run

OURS = ["lighthouse=ftslurm"]
STOCK = ["lighthouse=torchft"]
ids = {"ids": lambda value: value if isinstance(value, str) else value[0].removeprefix("lighthouse=")}
TRAIN = {"open-end": True, "step-time": 0.1}
RESTART = ("restart.backoff_s=0.2", "restart.max_per_group=50")
SLURM = pytest.param("slurm", OURS, marks=pytest.mark.slurm)
TORCHFTS = pytest.param("local", STOCK, marks=pytest.mark.nightly)
both = pytest.mark.parametrize(("backend", "lighthouse"), [("local", OURS), TORCHFTS], indirect=["backend"], **ids)
ours_on_slurm = pytest.mark.parametrize(("backend", "lighthouse"), [SLURM, TORCHFTS], indirect=["backend"], **ids)
# A later attempt asks for its first quorum only when the file "go" exists; a rank that finishes writes it.
HOLDS = f"""
import os, runpy, time
from torchft.manager import Manager
go = os.path.join(os.path.dirname(__file__), "go")
ask = Manager.start_quorum
def start_quorum(*args, **kwargs):
    if os.environ["FTSLURM_ATTEMPT"] != "0" and not os.path.exists(go):
        print("holding", flush=True)
        while not os.path.exists(go):
            time.sleep(0.02)
    return ask(*args, **kwargs)
Manager.start_quorum = start_quorum
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
open(go, "w")
"""


def until_held(run: Run, *groups: int) -> None:
    for group in groups:
        run.until(lambda g=group: "holding" in run.rank_log(g, attempt=1), f"group {group} before its first quorum")


def stop(run: Run, group: int) -> None:
    """Stop a group with its heartbeats until it counts as dead (heartbeat_timeout_ms=1000 with both Lighthouses)."""
    os.kill(run.pid(group), signal.SIGSTOP)
    time.sleep(1.5)


def until_refused(run: Run, lighthouse: list[str], group: int) -> None:
    """Wait until the journal says which part refused the fresh group a quorum without the training's state."""
    if lighthouse is OURS:
        assert "they would start a new history" in str(run.wait_for("quorum_refused")["reason"])
    else:
        ended = run.wait_for("step_exited", group=group, attempt=1)
        assert ended["cause"] == "unknown"  # not the script's fault
        assert "ended by ftslurm before it took a step" in str(ended["error"])
        assert "it would begin a new history" in str(ended["error"])


@both
@pytest.mark.nightly
def test_a_fresh_group_waits_for_the_stopped_last_holder_and_heals_from_it(
    backend: Backend, lighthouse: list[str]
) -> None:
    script = backend.script(HOLDS, "toy.py")
    run = backend.start("groups.count=2", *lighthouse, *RESTART, script=script, args=TRAIN)
    run.wait_for_steps(6, groups=2)
    run.kill(group=1)
    until_held(run, 1)
    stop(run, 0)
    reached = int(run.steps(0)[-1]["step"])
    if lighthouse is STOCK:  # torchft's forgets everything, and the fresh group is the first to dial
        run.kill_lighthouse()
        run.wait_for("step_ready", unit="lighthouse", attempt=1)
    (backend.tmp_path / "go").touch()
    until_refused(run, lighthouse, 1)
    assert int(run.steps(1)[-1]["step"]) <= reached
    os.kill(run.pid(0), signal.SIGCONT)
    run.wait_until_back_at_last(1)
    steps = run.end_soon()
    run.finish()
    committed = [int(s["step"]) for s in run.steps(0)]  # torchft's may let the other group begin alone
    assert committed == list(range(committed[0], steps + 1))
    assert min(int(s["step"]) for s in run.steps(1) if s["attempt"] > 0) >= reached
    assert len(set(run.weights().values())) == 1, run.weights()
    assert len(run.weights()) == 2


@ours_on_slurm
def test_when_the_last_that_has_the_state_dies_two_fresh_groups_do_not_begin_anew(
    backend: Backend, lighthouse: list[str]
) -> None:
    script = backend.script(HOLDS, "toy.py")
    run = backend.start("groups.count=3", "groups.min=2", *lighthouse, *RESTART, script=script, args=TRAIN)
    run.wait_for_steps(6, groups=3)
    run.kill(group=1)
    run.kill(group=2)
    until_held(run, 1, 2)
    stop(run, 0)
    (backend.tmp_path / "go").touch()
    until_refused(run, lighthouse, 1)
    run.kill(group=0)
    run.finish(1)
    (end,) = run.named("run_finished")
    assert "no group is left that holds the state of step" in str(end["reason"])
    assert "restart.on_state_loss" in str(end["reason"])
    assert {s["attempt"] for g in range(3) for s in run.steps(g)} == {0}


@both
@pytest.mark.nightly
def test_a_group_that_comes_back_after_the_end_does_not_train_all_steps_again(
    backend: Backend, lighthouse: list[str]
) -> None:
    script = backend.script(HOLDS, "toy.py")
    run = backend.start("groups.count=2", *lighthouse, script=script, args=TRAIN | {"step-time": 0.01})
    run.wait_for_steps(6, groups=2)
    run.kill(group=1)
    until_held(run, 1)
    run.end_soon()
    run.finish(4)  # the other has the result
    assert {s["attempt"] for s in run.steps(1)} == {0}
    (given_up,) = run.named("group_given_up", group=1)
    assert "had already finished" in str(given_up["reason"])
    assert len(run.weights()) == 1


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.nightly
def test_a_stopped_group_does_not_go_on_when_the_others_are_gone(backend: Backend) -> None:
    # With our Lighthouse it asks in vain until the limit of a quorum; it comes to the same end.
    run = backend.start("groups.count=2", *STOCK, *RESTART, args=TRAIN)
    run.wait_for_steps(6, groups=2)
    stop(run, 1)
    reached = int(run.steps(1)[-1]["step"])
    run.until(lambda: any(e["step"] > reached + 10 for e in run.progress if e["group"] == 0), "10 further steps")
    time.sleep(2.5)  # the pings, one a second, say so, too
    run.kill(group=0)
    os.kill(run.pid(1), signal.SIGCONT)
    run.finish(1)
    ended, *_ = run.named("step_exited", group=1, attempt=0)
    assert "nobody in this quorum is beyond" in str(ended["error"])
    assert int(run.steps(1)[-1]["step"]) <= reached + 1  # the one under way
    assert {s["attempt"] for g in (0, 1) for s in run.steps(g)} == {0}
    assert "restart.on_state_loss" in str(run.named("run_finished")[0]["reason"])


# Rank 1 of group 1 cannot fetch the state, and rank 0, which could, is the last to ask for the next quorum.
HALF_HEALS = f"""
import os, runpy, time
from torchft.checkpointing import HTTPTransport
from torchft.manager import Manager
group, attempt, rank = (os.environ[name] for name in ("REPLICA_GROUP_ID", "FTSLURM_ATTEMPT", "RANK"))
if (group, attempt) == ("1", "1"):
    if rank == "1":
        def recv_checkpoint(*_, **__):
            raise ConnectionError("the donor hung up")
        HTTPTransport.recv_checkpoint = recv_checkpoint
    else:
        ask, asked = Manager.start_quorum, []
        def start_quorum(*args, **kwargs):
            asked.append(1)
            time.sleep(1.0 if len(asked) > 1 else 0.0)
            return ask(*args, **kwargs)
        Manager.start_quorum = start_quorum
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
"""


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.nightly
def test_a_rank_that_could_not_heal_does_not_train_on_beside_one_that_could(backend: Backend) -> None:
    script = backend.script(HALF_HEALS, "toy.py")
    run = backend.start("groups.count=2", "groups.workers=2", *STOCK, *RESTART, script=script, args=TRAIN)
    run.wait_for_steps(6, groups=2)
    run.kill(group=1)
    ended = run.wait_for("step_exited", group=1, attempt=1)
    assert "this rank is at step 0 and its group counts as being at step" in str(ended["error"]), ended
    run.wait_until_back(1, attempt=2)
    steps = run.end_soon()
    run.finish()
    for rank in (0, 1):
        assert int(run.steps(1, rank)[-1]["step"]) == steps
        assert {s["attempt"] for s in run.steps(1, rank)} == {0, 2}
    assert len(run.weights()) == 4
    assert len(set(run.weights().values())) == 1, run.weights()
