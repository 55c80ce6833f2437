"""Checks of nodes by the first step there, on a real Slurm (health.preflight)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Backend

from ftslurm.guard import processes

pytestmark = [pytest.mark.slurm, pytest.mark.light]

CHECK = """#!/bin/sh
echo "looking at $FTSLURM_NODE in $FTSLURM_RUN_DIR"
case $FTSLURM_NODE in
    n2) echo "GPU 3 has fallen off the bus"; exit 3 ;;
    n3) kill -9 $$ ;;
esac
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "check.sh"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_nodes_whose_check_fails_or_is_killed_are_left_out_and_groups_run_on_the_others(
    slurm: Backend, tmp_path: Path
) -> None:
    check = program(tmp_path, CHECK)
    settings = [f"health.preflight=[[{check}]]", "cluster.requeue=false", "cluster.spare_nodes=2", "standby.count=0"]
    run = slurm.start("groups.count=2", *settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(3, groups=2)
    failed = {str(e["node"]): e for e in run.named("node_check_failed")}
    assert set(failed) == {"n2", "n3"}
    assert "exit code 3: GPU 3 has fallen off the bus" in str(failed["n2"]["reason"])
    assert "ended by signal 9" in str(failed["n3"]["reason"])
    assert {e["node"] for e in run.named("node_check_passed")} == {"n1", "n4"}
    assert {run.node_of(0, 0), run.node_of(1, 2)} == {"n1", "n4"}
    ends = [(e["cause"], e["node"]) for e in run.named("step_exited", unit="group-0001")]
    assert ends == [("hardware", "n2"), ("hardware", "n3")]
    assert "looking at n2 in" in (run.dir / str(failed["n2"]["log"])).read_text()
    status = run.ask("status")[1]
    assert "left out: n2 (has failed its check: " in status
    assert "n3 (has failed its check: " in status
    assert "fallen off the bus" in json.loads(run.ask("status", "--json")[1])["excluded_nodes"]["n2"]
    run.kill_controller()
    run.until(lambda: len(run.named("run_started")) == 2, "another controller")
    run.tell("restart", "--group", "1")
    run.wait_for("group_joined", group=1, attempt=3)
    assert run.node_of(1, 3) == run.node_of(1, 2)  # the other controller knows the results
    assert len(run.named("node_check_passed")) == 2
    run.end_soon()
    run.finish()
    assert "fallen off the bus" in run.text


ONCE = """#!/bin/sh
echo "GPUs $CUDA_VISIBLE_DEVICES of $FTSLURM_PREFLIGHT_GPUS, key=$SECRET_KEY"
mkdir "$FTSLURM_RUN_DIR/first" 2>/dev/null && echo "the disk is full" && exit 1
exit 0
"""


@pytest.mark.nightly
def test_in_array_mode_a_job_with_a_bad_node_is_replaced(slurm: Backend, tmp_path: Path) -> None:
    settings = [f"health.preflight=[[{program(tmp_path, ONCE)}]]", "cluster.kind=array"]
    settings += ["groups.gpus=2", "job.secrets=[SECRET_KEY]"]
    slurm.environ["SECRET_KEY"] = "hidden"
    run = slurm.start("groups.count=2", *settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(3, groups=2)
    (failed,) = run.named("node_check_failed")
    placed = {e["group"]: e["nodes"] for e in run.named("step_launched") if e["group"] is not None}
    assert [failed["node"]] not in placed.values()  # the last ones
    assert [e["exclude"] for e in run.named("allocation_requested")][-1] == [failed["node"]]
    assert "GPUs 0,1 of 2, key=\n" in (run.dir / str(failed["log"])).read_text()
    run.end_soon()
    run.finish()


def test_a_run_without_a_sound_node_fails_and_says_why(slurm: Backend, tmp_path: Path) -> None:
    check = program(tmp_path, "#!/bin/sh\necho no GPU here\nexit 1\n")
    run = slurm.start("groups.count=2", f"health.preflight=[[{check}]]", args={"steps": 3})
    run.finish(1, outcome="failed")
    reason = str(run.named("run_finished")[0]["reason"])
    assert "none of the run's nodes has passed its check (health.preflight)" in reason
    assert "exit code 1: no GPU here; see logs/preflight-n" in reason
    assert not run.named("script_begun")


def test_a_command_that_no_node_has_is_told_as_a_fault_of_the_setting_and_not_of_nodes(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", "cluster.spare_nodes=2", "health.preflight=[[no-such-check, -v]]")
    run.finish(1, outcome="failed")
    (finished,) = run.named("run_finished")
    assert finished["reason"] == "every group failed before its first step, all in the same way"
    why = "health.preflight cannot be run there: no-such-check -v: cannot be started (No such file or directory)"
    assert why in str(finished["failure"])
    assert "broken hardware" not in run.text
    assert len([line for line in run.text.splitlines() if "no-such-check" in line]) <= 4


def test_a_check_goes_on_under_another_controller_and_a_stop_leaves_nothing(slurm: Backend, tmp_path: Path) -> None:
    check = program(tmp_path, '#!/bin/sh\necho $$ >> "$FTSLURM_RUN_DIR/begun"\nsleep 600\n')
    run = slurm.start("groups.count=1", f"health.preflight=[[{check}]]", args={"steps": 3})
    run.until(lambda: (run.dir / "begun").exists(), "the check")
    waits = "waits for the check of its nodes (health.preflight)"
    run.until(lambda: waits in " ".join(run.text.split()), "what the group waits for")
    assert not run.named("node_silent")
    run.kill_controller()
    run.until(lambda: run.named("step_adopted", unit="group-0000"), "the next controller")
    (first,) = (run.dir / "begun").read_text().split()
    assert Path(f"/proc/{first}").exists()
    run.tell("stop")
    run.finish(1, outcome="stopped")  # and no process is left
    assert processes.state(int(first)) in (None, "Z")
