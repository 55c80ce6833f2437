"""When no live group holds the training's state, the run starts over from the newest complete checkpoint or fails."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from checkpoints import part_of
from cluster import Cluster
from harness import Backend, Run

SETTINGS = ("groups.count=2", "checkpoint.every=5", "restart.backoff_s=0")


def saved(run: Run, step: int) -> dict[str, object]:
    """Wait for a checkpoint of this step or a later one."""
    run.until(lambda: [e for e in run.named("checkpoint_saved") if int(str(e["step"])) >= step], f"checkpoint {step}")
    return run.named("checkpoint_saved")[-1]


def kill_all(run: Run, groups: int = 2, attempt: int = 0) -> None:
    for pid in [run.pid(group, attempt=attempt) for group in range(groups)]:
        os.kill(pid, signal.SIGKILL)


def losses(run: Run, group: int, attempt: int) -> dict[int, str]:
    """Return the loss that the script printed after each committed step: step -> loss."""
    lines = re.findall(r"^step (\d+) loss (\S+) participants 2$", run.rank_log(group, attempt=attempt), re.MULTILINE)
    return {int(step): loss for step, loss in lines}


def restarted(run: Run) -> tuple[dict[str, object], list[int]]:
    """The full restart, and as which attempt each group is back; one that died first may have had another between."""
    full = run.wait_for("full_restart")

    def back(group: int) -> list[int]:
        joined = [e for e in run.named("group_joined", group=group) if int(str(e["seq"])) > int(str(full["seq"]))]
        return [int(str(e["attempt"])) for e in joined]

    groups = sorted({int(str(e["group"])) for e in run.named("step_launched") if e["group"] is not None})
    run.until(lambda: all(back(group) for group in groups), "all groups are back")
    return full, [back(group)[0] for group in groups]


def controller(run: Run) -> int:
    return int(str(run.named("run_started")[-1]["pid"]))


@pytest.mark.parametrize("backend", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_all_groups_killed_at_once_start_over_from_the_newest_checkpoint(backend: Backend) -> None:
    run = backend.start(*SETTINGS, "checkpoint.keep=2", args={"open-end": True, "step-time": 0.1})
    saved(run, 15)
    run.wait_for_steps(18, groups=2)
    kill_all(run)
    full, attempts = restarted(run)
    step, reached = int(str(full["checkpoint_step"])), int(str(full["step"]))
    assert step % 5 == 0
    assert 0 <= reached - step < 10
    assert "no group is left that holds the state" in str(full["reason"])
    assert [e["step"] for e in run.named("checkpoint_restored")] == [step] * 2
    end = run.end_soon()
    run.finish()
    for group, attempt in enumerate(attempts):
        before, after = losses(run, group, 0), losses(run, group, attempt)
        assert min(after) == step + 1  # nothing is skipped
        again = before.keys() & after.keys()
        assert {s: before[s] for s in again} == {s: after[s] for s in again}  # the same losses
        assert [s["step"] for s in run.steps(group) if s["attempt"] == attempt] == list(range(step + 1, end + 1))
    assert len(set(run.weights().values())) == 1
    kept = sorted(path.name for path in (run.dir / "checkpoints").iterdir())
    last = [f"{n:08d}" for n in (end // 5 * 5 - 5, end // 5 * 5)]
    assert [name for name in kept if name.startswith("step-")] == [f"step-{n}.json" for n in last]
    assert [name[:13] for name in kept if name.startswith("data-")] == [f"data-{n}" for n in last]
    assert f"full restart from the checkpoint of step {step}" in run.text
    assert "group 1 resumes from the checkpoint of step" in run.text
    assert f"no group is left that holds the state of step {reached}" in run.text
    assert (f"of step {step}, {reached - step} step" in run.text) == (reached > step)


@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_truncated_unreadable_and_unfinished_checkpoints_are_skipped(
    backend: Backend,
) -> None:
    run = backend.start(*SETTINGS, args={"open-end": True, "step-time": 0.1})
    saved(run, 15)
    os.kill(controller(run), signal.SIGSTOP)  # it looks for checkpoints when the last group has ended
    kill_all(run)
    folder = run.dir / "checkpoints"
    good, before, newest = sorted(folder.glob("step-*.json"))[-3:]
    tree = part_of(folder, int(before.stem[5:])) / "tree.pickle"
    tree.write_bytes(bytes(byte ^ 0xFF for byte in tree.read_bytes()))  # the same size: only reading shows it
    largest = max(part_of(folder, int(newest.stem[5:])).glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    (folder / "step-00000900").mkdir()  # not ours
    (folder / "data-00000905-x-1-0-00000000").mkdir()
    os.kill(controller(run), signal.SIGCONT)
    full, attempts = restarted(run)
    assert full["checkpoint"] == str(before)
    assert {e["path"] for e in run.named("checkpoint_restored")} == {str(good)}
    assert not [e for e in run.named("step_exited") if "new history" in str(e["error"])]
    run.end_soon()
    run.finish()
    assert len(set(run.weights().values())) == 1
    said = run.rank_log(0, attempt=attempts[0])
    assert f"{newest}: {largest.parent.name}/{largest.name} has" in said


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.nightly
def test_a_script_that_does_not_resume_is_not_let_begin_anew(backend: Backend) -> None:
    first = backend.start(*SETTINGS, f"checkpoint.dir={backend.tmp_path}/ckpt", args={"steps": 12, "step-time": 0.02})
    first.finish()
    run = backend.start(
        *SETTINGS, f"checkpoint.dir={backend.tmp_path}/ckpt", "restart.max_per_group=1",
        args={"steps": 30, "no-resume": True},
    ).finish(1)  # fmt: skip
    (end,) = run.named("run_finished")
    assert end["steps"] == 0
    assert "step 10" in str(end["reason"])
    assert run.steps(0) == run.steps(1) == []
    again = backend.start(*SETTINGS, f"checkpoint.dir={backend.tmp_path}/ckpt", args={"steps": 30, "step-time": 0.02})
    again.finish()
    assert [s["step"] for s in again.steps(1)] == list(range(11, 31))  # one that does goes on


@pytest.mark.slurm
@pytest.mark.nightly
def test_a_requeued_run_resumes(slurm_cluster: Cluster, slurm: Backend) -> None:
    run = slurm.start(*SETTINGS, "cluster.sbatch.exclude=n4", args={"open-end": True, "step-time": 0.1})
    saved(run, 10)
    job = str(run.named("run_started")[0]["job_id"])
    slurm_cluster.run(["scontrol", "requeue", job])
    run.wait_for("run_requeued")
    run.until(lambda: "PENDING" in slurm_cluster.run(["squeue", "-h", "-j", job, "-o", "%T"]), "PENDING")
    time.sleep(2)  # sooner, slurmctld may find the node's credential revoked and fail the job for good
    slurm_cluster.run(["scontrol", "update", f"jobid={job}", "StartTime=now"])
    full, attempts = restarted(run)
    assert attempts == [1, 1]
    assert "requeued" in str(full["reason"])
    run.end_soon()
    run.finish()
    assert len(set(run.weights().values())) == 1
    for group in range(2):
        before, after = losses(run, group, 0), losses(run, group, 1)
        again = before.keys() & after.keys()
        assert {s: before[s] for s in again} == {s: after[s] for s in again}
