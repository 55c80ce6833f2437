"""`ftslurm restart`, `drain` and their kin on a real Slurm, in one allocation and in array mode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from harness import Backend, Run
from terminal_session import Terminal

pytestmark = [pytest.mark.slurm, pytest.mark.light]
OPEN = {"open-end": True, "step-time": 0.1}


def attach(run: Run, group: int, rank: int = 0) -> Terminal:
    """Start `ftslurm attach` in a terminal, as a user types it there."""
    words = [sys.executable, "-m", "ftslurm", "attach", str(run.dir), f"--group={group}", f"--rank={rank}"]
    return Terminal(words, run.environ)


def leave(shell: Terminal) -> None:
    shell.type("exit 7")
    assert shell.exit_code() == 7


def test_drained_nodes_are_left_and_the_training_goes_on(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", "cluster.spare_nodes=1", "groups.gpus=0", "restart.max_per_group=0", args=OPEN)
    run.wait_for_steps(5, 2)
    first, second = run.node_of(0, 0), run.node_of(1, 0)
    assert run.ask("drain", "nowhere")[0] == 2
    code, said = run.ask("drain", second)
    assert (code, said) == (
        0,
        f"drain: {second} gets nothing any more; group 1: moved as soon as there is another place\n",
    )
    run.wait_until_back(1)
    assert run.node_of(1, 1) not in (first, second)
    shell = attach(run, 1)
    shell.until("a shell beside rank 0 of group 1 (attempt 1), with its environment")
    shell.type("echo IT=$REPLICA_GROUP_ID.$RANK.$FTSLURM_ATTEMPT.$SLURMD_NODENAME.$FTSLURM_STEP.")
    shell.until(f"IT=1.0.1.{run.node_of(1, 1)}..")
    leave(shell)
    code, said = run.ask("status")
    assert f"drained: {second}" in said
    code, said = run.ask("undrain", second)
    assert (code, said) == (0, f"undrain: {second} is used again\n")
    code, said = run.ask("drain", first)  # the Lighthouse and group 0; the controller stays
    assert "lighthouse, group 0: moved as soon as there is another place" in said
    run.wait_until_back(0)
    assert run.node_of(0, 1) == second
    leaders = run.kill_controller()
    run.until(lambda: len(run.named("run_started")) > leaders, "another controller leads")
    run.wait_for("step_adopted", group=0)
    run.wait_for("step_adopted", group=1)
    code, said = run.ask("drain", first)
    assert (code, said) == (1, f"ftslurm: drain refused: {first} is drained already\n")
    code, said = run.ask("restart", "--group", "1")
    assert code == 0
    run.wait_until_back(1, attempt=2)
    last = run.end_soon()
    run.finish()
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"requested", "ok"}
    assert {int(s["step"]) for group in (0, 1) for s in run.steps(group)} == set(range(1, last + 1))
    assert len(set(run.weights().values())) == 1


@pytest.mark.nightly
def test_in_array_mode_a_drained_node_is_left_for_a_new_job(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", "cluster.kind=array", "groups.gpus=0", "restart.max_per_group=1", args=OPEN)
    run.wait_for_steps(5, 2)
    node = run.node_of(1, 0)
    code, said = run.ask("drain", node)
    assert (code, said) == (
        0,
        f"drain: {node} gets nothing any more; group 1: moved as soon as there is another place\n",
    )
    run.wait_until_back(1)
    assert run.node_of(1, 1) != node
    assert run.wait_for("allocation_lost")["reason"] == f"{node} is drained"
    shell = attach(run, 1)
    shell.until("a shell beside rank 0 of group 1 (attempt 1)")
    shell.type("echo IT=$REPLICA_GROUP_ID.$RANK.$MASTER_PORT.")
    shell.until("IT=1.0.")
    run.kill(1)
    run.wait_until_back(1, attempt=2)
    shell.type("echo ALIVE=$REPLICA_GROUP_ID.")
    shell.until("ALIVE=1.")
    leave(shell)
    run.end_soon()
    run.finish()
    assert [e["cause"] for e in run.named("step_exited", group=1)] == ["requested", "killed", "ok"]
    assert len(set(run.weights().values())) == 1


def test_what_variables_give_to_sbatch_every_job_of_the_run_has_and_it_saves_before_it_stops(slurm: Backend) -> None:
    """SBATCH_* reach the pilots, which a job submits; the time limit of the settings wins."""
    slurm.environ |= {
        "SBATCH_TIMELIMIT": "7",
        "SBATCH_ACCOUNT": "physics",
        "SBATCH_WAIT": "1",
        "SBATCH_OUTPUT": "/x/%j",
    }
    words = ("groups.count=2", "cluster.kind=array", "cluster.time=120")
    run = slurm.start(*words, script="light_saving.py", args={"steps": 100000, "step-time": 0.1})
    for group in (0, 1):
        run.wait_for("group_joined", group=group)
    assert "ftslurm: SBATCH_ACCOUNT becomes cluster.account=physics\n" in run.text
    assert "ftslurm: SBATCH_TIMELIMIT=7 is not used: a setting says time=120\n" in run.text
    command = ["squeue", "--noheader", "--format=%a %l", "--states=RUNNING"]
    shown = subprocess.run(command, env=os.environ | slurm.environ, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == ["physics 2:00:00"] * 3
    for pid in run.processes():
        with suppress(OSError):
            assert b"\0SBATCH_" not in b"\0" + Path(f"/proc/{pid}/environ").read_bytes() or pid == run.process.pid
    code, said = run.ask("stop", "--save")
    saved = run.named("command_done", what="save")[-1]
    assert (code, said) == (0, f"{run.dir.name} is stopping; saved: {saved['text']}\n")
    assert run.named("checkpoint_saved")[-1]["step"] == saved["step"]
    run.finish(1, outcome="stopped")


def test_a_shell_beside_a_standby_that_has_become_a_group(slurm: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret")
    settings = ("groups.count=2", "groups.workers=2", "standby.count=1", "job.secrets=[MY_TOKEN]")
    run = slurm.start(*settings, "health.hang_after_s=0", args=OPEN)  # a rank is stopped for as long as a verb takes
    run.wait_until_back(0, 1, attempt=0)  # a group that alone holds the state is not asked to leave
    run.wait_for("step_ready", unit="standby-000")
    run.tell("restart", "--group", "1")
    run.wait_until_back(1)
    assert run.named("step_launched", group=1, attempt=1)[0]["standby"] == "standby-000/0"
    code, said = run.ask("attach", "--group", "1", "--rank", "1", "--print")
    assert code == 0
    assert "--step=standby-000/0 --task=1" in said
    assert "very-secret" not in said
    shell = attach(run, 1, 1)
    shell.type("echo IT=$REPLICA_GROUP_ID.$RANK.$LOCAL_RANK.$MY_TOKEN.")
    shell.until("IT=1.1.1.very-secret.")
    leave(shell)
    run.kill(1, 1, signal.SIGSTOP)
    code, said = run.ask("stacks", "--group", "1", "--rank", "1")
    run.kill(1, 1, signal.SIGCONT)
    assert code == 0
    assert "rank 1 of group 1 on " in said
    assert "state T" in said
    assert "light.py" in said
    code, said = run.ask("attach", "--group", "1", "--rank", "2")
    assert (code, said) == (2, "ftslurm: there is no rank 2, only 2 ranks, numbered from 0\n")
    code, said = run.ask("attach", "--group", "1")
    assert (code, said.startswith("ftslurm: attach needs a terminal")) == (2, True)
    run.end_soon()
    run.finish()


@pytest.mark.nightly
def test_an_accepted_restart_is_finished_by_the_controller_that_takes_over(slurm: Backend) -> None:
    stubborn = {**OPEN, "ignore-sigterm": True}
    run = slurm.start("groups.count=2", "stop.grace_s=5", "restart=never", args=stubborn)
    run.wait_for_steps(5, 2)
    run.tell("restart", "--group", "1")
    leaders = run.kill_controller()
    run.until(lambda: len(run.named("run_started")) > leaders, "another controller leads")
    exited = run.wait_for("step_exited", group=1, attempt=0)
    assert (exited["cause"], exited["error"]) == ("requested", "asked for with ftslurm restart")
    assert int(str(exited["seq"])) > int(str(run.named("run_started")[-1]["seq"]))
    run.wait_until_back(1)
    assert run.named("step_exited", group=0) == []
    run.end_soon()
    run.finish()
