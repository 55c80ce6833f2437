"""`ftslurm restart` and its kin during a training on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from harness import Backend
from terminal_session import Terminal


def test_a_group_restarts_on_request_and_the_others_miss_no_step(tmp_path: Path) -> None:
    backend = Backend("local", {"COLUMNS": "200"}, tmp_path)
    run = backend.start("groups.count=2", "restart.policy=never", args={"open-end": True, "step-time": 0.1})
    try:
        run.wait_for_steps(5, 2)
        code, said = run.ask("restart", "--group", "7")
        assert (code, said) == (1, "ftslurm: restart refused: there is no group 7; the run has groups 0 to 1\n")
        words = [sys.executable, "-m", "ftslurm", "attach", str(run.dir), "--group=1"]
        shell = Terminal(words, run.environ)
        shell.type("echo IT=$REPLICA_GROUP_ID.$RANK.$FTSLURM_NODE.; exit 3")
        shell.until("IT=1.0.local1.")
        assert shell.exit_code() == 3
        code, said = run.ask("stacks", "--group", "1")
        assert code == 0
        assert "rank 0 of group 1 on " in said
        assert "asked for by ftslurm stacks" in said
        assert "toy.py" in said.partition("by py-spy:")[2]
        assert run.ask("stacks", "--group", "1", "--all")[0] == 0
        code, said = run.ask("stacks", "--group", "1", "--rank", "4")
        assert (code, said) == (1, "ftslurm: stacks refused: group 1 has no rank 4; it has ranks 0 to 0\n")
        code, said = run.ask("restart", "--group", "1", "--rank", "0")
        assert (code, said) == (0, "restart: group 1 is asked to leave, and starts again as attempt 1\n")
        run.wait_until_back(1)
        last = run.end_soon()
        run.finish()
    finally:
        run.abandon()
    (exited,) = run.named("step_exited", group=1, attempt=0)
    assert exited["cause"] == "requested"
    assert [int(s["step"]) for s in run.steps(0)] == list(range(1, last + 1))
    assert len(set(run.weights().values())) == 1
    assert "group 1 is asked to leave its nodes: asked for with ftslurm restart, for rank 0 on" in run.text


def test_a_checkpoint_is_saved_on_request_and_refused_to_scripts_without_one(tmp_path: Path) -> None:
    backend = Backend("local", {"COLUMNS": "200"}, tmp_path)
    can = backend.start("groups.count=2", script="saving.py", args={"steps": 100000, "step-time": 0.1})
    cannot = backend.start("groups.count=1", args={"open-end": True, "step-time": 0.1})
    try:
        can.wait_for("group_joined", group=1)
        code, said = can.ask("save")
        (done,) = can.named("command_done", what="save")
        assert (code, said) == (0, f"save: checkpoint of step {done['step']}: {done['path']}\n")
        assert (Path(str(done["path"])) / "manifest.json").exists()
        assert can.named("checkpoint_saved", step=done["step"])
        cannot.wait_for_steps(3, 1)
        code, said = cannot.ask("save")
        assert code == 1
        assert said.startswith("ftslurm: save refused: no script of the run has an ftslurm.checkpoint.Checkpointer")
        for run in (can, cannot):
            assert run.ask("stop")[0] == 0
            run.until(lambda run=run: run.named("run_finished"), "the end")
            code, said = run.ask("save")
            assert (code, said) == (2, f"ftslurm: {run.dir.name} is over: was stopped; nothing is left to save\n")
    finally:
        can.abandon()
        cannot.abandon()
