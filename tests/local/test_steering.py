"""`ftslurm restart` and its kin during a training on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import Backend
from quick import ask
from terminal_session import Terminal

pytestmark = pytest.mark.light


def test_a_group_restarts_on_request_and_the_others_miss_no_step_and_what_cannot_be_is_refused(local: Backend) -> None:
    run = local.start("groups.count=2", "restart=never", args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, 2)
    code, said = ask(run, "restart", "--group", "7")
    assert (code, said) == (2, "ftslurm: there is no group 7, only 2 groups, numbered from 0\n")
    words = [sys.executable, "-m", "ftslurm", "attach", str(run.dir), "--group=1"]
    shell = Terminal(words, run.environ)
    shell.type("echo IT=$REPLICA_GROUP_ID.$RANK.$FTSLURM_NODE.; exit 3")
    shell.until("IT=1.0.local1.")
    assert shell.exit_code() == 3
    code, said = ask(run, "stacks", "--group", "1")
    assert code == 0
    assert "rank 0 of group 1 on " in said
    assert "asked for by ftslurm stacks" in said
    assert "light.py" in said
    assert ask(run, "stacks", "--group", "1", "--all")[0] == 0
    code, said = ask(run, "stacks", "--group", "1", "--rank", "4")
    assert (code, said) == (2, "ftslurm: there is no rank 4, only 1 rank, numbered from 0\n")
    assert not run.named("command_refused")
    code, said = ask(run, "save")
    assert code == 1
    assert said.startswith("ftslurm: save refused: no script of the run has an ftslurm.checkpoint.Checkpointer")
    code, again = ask(run, "stop", "--save")  # without a checkpoint the run goes on, as the rest of this test shows
    hint = f". Nothing is stopped: ftslurm stop {run.dir} stops it without saving\n"
    assert (code, again) == (1, said.rstrip("\n") + hint)
    code, said = ask(run, "restart", "--group", "1")
    assert (code, said) == (0, "restart: group 1 is asked to leave, and starts again as attempt 1\n")
    run.wait_until_back(1)
    last = run.end_soon()
    run.finish()
    (exited,) = run.named("step_exited", group=1, attempt=0)
    assert exited["cause"] == "requested"
    assert [int(s["step"]) for s in run.steps(0)] == list(range(1, last + 1))
    assert len(set(run.weights().values())) == 1
    assert "group 1 is asked to leave its nodes: asked for with ftslurm restart" in run.text


def test_a_checkpoint_is_saved_on_request(local: Backend) -> None:
    script = "light_saving.py"
    run = local.start("groups.count=1", script=script, args={"steps": 100000, "step-time": 0.1})
    run.wait_for("group_joined", group=0)
    code, said = ask(run, "save")
    assert code == 0, said
    (done,) = run.named("command_done", what="save")
    assert (code, said) == (0, f"save: checkpoint of step {done['step']}: {done['path']}\n")
    assert Path(str(done["path"])).exists()
    assert run.named("checkpoint_saved", step=done["step"])
    code, said = ask(run, "stop", "--save")
    again = run.named("command_done", what="save")[-1]
    assert int(str(again["step"])) > int(str(done["step"]))
    assert (code, said) == (0, f"{run.dir.name} is stopping; saved: {again['text']}\n")
    run.until(lambda: run.named("run_finished"), "the end")
    code, said = ask(run, "stop", "--save")
    assert (code, said.partition(". Nothing")[0]) == (1, f"ftslurm: {run.dir.name} is over: was stopped")
    code, said = ask(run, "save")
    assert (code, said) == (2, f"ftslurm: {run.dir.name} is over: was stopped\n")
