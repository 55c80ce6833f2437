"""Groups that fail and come back, on this machine and on a real Slurm: the same table for both.

After each: the survivors committed every step exactly once and never stalled, no step is missing, nothing is left
running, and all groups end with bit-equal weights (harness.Run.check_training, finish).
"""

from __future__ import annotations

import os
import signal

from harness import Backend

TRAIN = {"steps": 120, "step-time": 0.05}  # long enough for a group that fails at 20 to be back before the end


def test_a_clean_run_launches_every_group_once_and_ends_with_equal_weights(backend: Backend) -> None:
    run = backend.start("groups.count=3", args={"steps": 20}).finish()
    run.check_training(20, survivors={0, 1, 2})
    assert len(run.named("step_launched")) == 4  # three groups and the Lighthouse
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"ok"}
    assert [e["restarts"] for e in run.named("run_finished")] == [0]


def test_a_group_that_exits_with_3_is_launched_again_and_heals(backend: Backend) -> None:
    fails = {"fail-at": 20, "fail-group": 1, "fail-how": "exit3"}
    run = backend.start("groups.count=3", args=TRAIN | fails).finish()
    run.check_training(120, survivors={0, 2}, returned={1})
    (ended,) = run.named("step_exited", group=1, attempt=0)
    assert (ended["cause"], ended["code"], ended["signal"]) == ("user_error", 3, None)
    assert len(run.named("step_launched")) == 5  # nobody else was touched


def test_an_exception_is_in_the_journal_with_its_text(backend: Backend) -> None:
    fails = {"fail-at": 20, "fail-group": 0, "fail-how": "raise"}
    run = backend.start("groups.count=2", args=TRAIN | fails).finish()
    run.check_training(120, survivors={1}, returned={0})
    (ended,) = run.named("step_exited", group=0, attempt=0)
    assert (ended["cause"], ended["error"]) == ("user_error", "RuntimeError: told to fail at step 20")
    assert "Traceback" in run.rank_log(0)
    assert "ftslurm/worker" not in run.rank_log(0).split("Traceback")[1]  # the user's frames only


def test_a_segmentation_fault_is_told_as_what_it_is(backend: Backend) -> None:
    fails = {"fail-at": 20, "fail-group": 1, "fail-how": "segv"}
    run = backend.start("groups.count=2", args=TRAIN | fails).finish()
    run.check_training(120, survivors={0}, returned={1})
    (ended,) = run.named("step_exited", group=1, attempt=0)
    assert (ended["cause"], ended["signal"]) == ("killed", signal.SIGSEGV)


def test_kill_9_of_one_rank_takes_its_two_node_group_down_and_only_that(backend: Backend) -> None:
    shape = ("groups.count=2", "groups.nodes=2", "groups.workers=2")
    run = backend.start(*shape, args={"steps": 100, "step-time": 0.1})
    run.until(lambda: len(run.steps(0)) >= 15 and len(run.steps(1)) >= 15, "15 steps of both groups")
    at = run.kill(group=1, rank=3)
    run.finish()
    run.check_training(100, survivors={0}, returned={1}, ranks=4)
    (ended,) = run.named("step_exited", group=1, attempt=0)
    assert (ended["cause"], ended["signal"], ended["rank"]) == ("killed", signal.SIGKILL, 3)
    assert float(str(ended["noticed"])) - at < 2.0
    first, second = run.named("step_launched", group=1)
    assert ended["node"] == first["nodes"][1]  # type: ignore[index]
    assert second["nodes"] == first["nodes"]
    table = [(r["rank"], r["node_rank"], r["local_rank"]) for r in second["ranks"]]  # type: ignore[attr-defined]
    assert table == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    (back,) = run.named("group_joined", group=1, attempt=1)
    assert 0 < float(str(back["recovery_s"])) < 60


def test_two_groups_killed_together_both_come_back(backend: Backend) -> None:
    run = backend.start("groups.count=3", args={"steps": 100, "step-time": 0.1})
    run.until(lambda: all(len(run.steps(g)) >= 15 for g in range(3)), "15 steps of all groups")
    for pid in [run.pid(0), run.pid(2)]:
        os.kill(pid, signal.SIGKILL)
    run.finish()
    run.check_training(100, survivors={1}, returned={0, 2})
    ends = [float(str(run.named("step_exited", group=g, attempt=0)[0]["time"])) for g in (0, 2)]
    again = [float(str(run.named("step_launched", group=g, attempt=1)[0]["time"])) for g in (0, 2)]
    assert max(again) < max(ends) + 1.0  # side by side: the second does not wait for the first to be back
    assert min(again) < float(str(run.named("group_joined", group=0, attempt=1)[0]["time"]))


def test_the_survivors_of_four_groups_do_not_wait_for_the_process_groups_time_out(backend: Backend) -> None:
    # Gloo's ring: a survivor that is no neighbour of the dead group learns of it only when the neighbours hang up.
    # toy.py's process groups time out after 10 s; without the patch "abort-on-error" that is what survivors waited.
    run = backend.start("groups.count=4", "restart=never", args={"steps": 80, "step-time": 0.05})
    run.until(lambda: all(len(run.steps(g)) >= 15 for g in range(4)), "15 steps of all groups")
    run.kill(group=1)
    run.finish()
    run.check_training(80, survivors={0, 2, 3})


def test_the_drill_kills_a_group_half_way_and_the_summary_tells_how_long_it_took(backend: Backend) -> None:
    run = backend.start("groups.count=2", "faults=kill_one", "job.total_steps=60", args=TRAIN).finish()
    run.check_training(120, survivors={0}, returned={1})
    (drill,) = run.named("fault_injected")
    assert (drill["group"], drill["kind"]) == (1, "kill")
    assert int(str(drill["step"])) >= 30
    assert "group 1 attempt 0 died" in run.text
    assert "relaunched as attempt 1" in run.text
    assert "group 1 is back" in run.text
    assert "the run succeeded" in run.text


def test_the_lighthouse_is_relaunched_on_its_address_and_no_group_is_restarted(backend: Backend) -> None:
    run = backend.start("groups.count=2", "groups.min=2", args={"steps": 60, "step-time": 0.1})
    run.until(lambda: len(run.steps(0)) >= 10, "10 steps")
    guards = [
        p for p in run.processes() if b"ftslurm.lighthouse" in _command_line(p) and b"srun" not in _command_line(p)
    ]
    os.kill(max(guards), signal.SIGKILL)  # the younger of guard and Lighthouse
    run.finish()
    assert len(run.named("step_launched", unit="lighthouse")) == 2
    assert len({e["url"] for e in run.named("step_ready", unit="lighthouse")}) == 1
    assert [e["restarts"] for e in run.named("run_finished")] == [0]
    assert len(set(run.weights().values())) == 1


def test_an_unmodified_torchrun_style_script_runs(backend: Backend) -> None:
    run = backend.start("groups.count=2", "job.args=['12']", script="torchrun_style.py").finish()
    assert len(run.named("group_joined")) == 2, run.rank_log(0)


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
