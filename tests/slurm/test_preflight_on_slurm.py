"""Checks of nodes before groups are placed there, on a real Slurm (health.preflight)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]

CHECK = """#!/bin/sh
echo "looking at $FTSLURM_NODE in $FTSLURM_RUN_DIR, its clock is ahead by $FTSLURM_PREFLIGHT_SKEW_S"
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
    settings = [f"health.preflight=[[{check}]]", "cluster.requeue=false"]
    settings += ["cluster.spare_nodes=2", "standby.count=1"]
    run = slurm.start("groups.count=2", *settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(3, groups=2)
    run.until(lambda: len(run.named("node_check_failed")) == 2, "the check that is killed")  # groups may be first
    assert {e["node"] for e in run.named("node_check_passed")} <= {"n1", "n4"}
    placed = [node for e in run.named("step_launched") if e["unit"] != "lighthouse" for node in e["nodes"]]  # type: ignore[attr-defined]
    assert set(placed) <= {"n1", "n4"}
    failed = {str(e["node"]): e for e in run.named("node_check_failed")}
    assert set(failed) == {"n2", "n3"}
    assert "exit code 3: GPU 3 has fallen off the bus" in str(failed["n2"]["reason"])
    assert "ended by signal 9" in str(failed["n3"]["reason"])
    assert "looking at n2 in" in (run.dir / str(failed["n2"]["log"])).read_text()
    status = run.ask("status")[1]
    assert "left out: n2, n3" in status or "left out: n3, n2" in status  # they fail at the same moment
    assert "node n2 has failed its check" in status
    assert "fallen off the bus" in json.loads(run.ask("status", "--json")[1])["unfit_nodes"]["n2"]
    run.kill_controller()
    run.until(lambda: len(run.named("run_started")) == 2, "another controller")
    run.end_soon()
    run.finish()
    assert len(run.named("node_checks_started")) == 1  # the other controller knows the results
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
    assert failed["node"] not in {n for e in run.named("step_launched", unit="group-0000") for n in e["nodes"]}  # type: ignore[attr-defined]
    assert [e["exclude"] for e in run.named("allocation_requested")][-1] == [failed["node"]]
    assert "GPUs 0,1 of 2, key=\n" in (run.dir / str(failed["log"])).read_text()
    run.end_soon()
    run.finish()


def test_a_run_without_a_sound_node_fails_at_once_and_says_why(slurm: Backend, tmp_path: Path) -> None:
    check = program(tmp_path, "#!/bin/sh\necho no GPU here\nexit 1\n")
    run = slurm.start("groups.count=2", f"health.preflight=[[{check}]]", args={"steps": 3})
    run.finish(1, outcome="failed")
    reason = str(run.named("run_finished")[0]["reason"])
    assert "none of the run's nodes has passed its check (health.preflight)" in reason
    assert "exit code 1: no GPU here; see logs/preflight-n" in reason
    assert [e["unit"] for e in run.named("step_launched")] in ([], ["lighthouse"])


def test_a_run_that_is_stopped_while_nodes_are_checked_leaves_nothing(slurm: Backend, tmp_path: Path) -> None:
    check = program(tmp_path, '#!/bin/sh\necho $$ >> "$FTSLURM_RUN_DIR/begun"\nsleep 600\n')
    run = slurm.start("groups.count=1", f"health.preflight=[[{check}]]", args={"steps": 3})
    run.until(lambda: (run.dir / "begun").exists(), "the check")
    run.until(lambda: "checking n" in run.text, "the line of the check")
    waits = "waits for the check of a node (health.preflight)"
    run.until(lambda: waits in " ".join(run.text.split()), "the reason why the group waits")
    assert not run.named("allocation_requested")  # the node may pass
    run.kill_controller()
    first = (run.dir / "begun").read_text().split()[0]
    run.until(lambda: not Path(f"/proc/{first}").exists(), "the check of the dead controller ends")  # the GPUs are free
    run.until(lambda: len((run.dir / "begun").read_text().split()) == 2, "the next controller checks")
    assert run.ask("stop")[0] == 0
    run.finish(1, outcome="stopped")  # and no process is left
