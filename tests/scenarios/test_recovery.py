"""Groups that fail and come back, on this machine and on a real Slurm, with the same table.

Each test checks: the survivors committed every step exactly once and never stalled, no step is missing, no process is
left, and all groups end with bit-equal weights (harness.Run.check_training, finish).

Where the Lighthouse matters, torchft's own is tested too. With ours no heartbeat time-out expires in any test, so that
code that waits for one is found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from urllib.parse import urlsplit

import pytest
from harness import SCRIPTS, Backend, Run, busy_cores

OURS = ["lighthouse=ftslurm", "health.lost_after_s=60", "job.longest_step_s=180"]  # silent and late: 30 s
STOCK = ["lighthouse=torchft"]
SLURM = pytest.param("slurm", OURS, marks=pytest.mark.slurm)
ids = {"ids": lambda value: value if isinstance(value, str) else value[0].removeprefix("lighthouse=")}
WITH_DDP = 'job.env.TOY_DDP="1"'  # torch's DDP, which most tests avoid
here = pytest.mark.parametrize("backend", ["local"], indirect=True)  # other tests cover srun
on_slurm = pytest.mark.parametrize("backend", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
TORCHFTS = pytest.param("local", STOCK, marks=pytest.mark.nightly)
# Launcher and Lighthouse are independent, so two of the four pairs are enough.
each_once = pytest.mark.parametrize(("backend", "lighthouse"), [SLURM, TORCHFTS], indirect=["backend"], **ids)
TRAIN = {"open-end": True, "step-time": 0.1}


@on_slurm
def test_a_clean_run_launches_every_group_once_and_ends_with_equal_weights(backend: Backend) -> None:
    run = backend.start("groups.count=3", args={"steps": 20}).finish()
    run.check_training(20, survivors={0, 1, 2})
    assert len(run.named("step_launched")) == 4  # three groups and the Lighthouse
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"ok"}
    assert [e["restarts"] for e in run.named("run_finished")] == [0]


@each_once
def test_a_group_that_exits_with_3_is_launched_again_and_heals(backend: Backend, lighthouse: list[str]) -> None:
    fails = {"fail-at": 10, "fail-group": 1, "fail-how": "exit3"}
    run = backend.start("groups.count=2", *lighthouse, args=TRAIN | fails)
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0}, returned={1})
    (ended,) = run.named("step_exited", group=1, attempt=0)
    assert (ended["cause"], ended["code"], ended["signal"]) == ("user_error", 3, None)
    assert len(run.named("step_launched")) == 4  # no other group was restarted
    if lighthouse is OURS:
        assert longest_gap(run, 0) < 3.0  # measured: 0.04 s and the step
        assert {s["participants"] for s in run.steps(0)} <= {1, 2}


@on_slurm
@pytest.mark.light
def test_exceptions_and_segmentation_faults_are_told_as_what_they_are(backend: Backend) -> None:
    crash = f"""
import os, runpy, sys
if os.environ["REPLICA_GROUP_ID"] == "1":
    sys.argv += ["--fail-group=1", "--fail-at=25", "--fail-how=segv"]
runpy.run_path({str(SCRIPTS / "light.py")!r}, run_name="__main__")
"""
    fails = {"fail-at": 10, "fail-group": 0, "fail-how": "raise"}
    run = backend.start("groups.count=3", script=backend.script(crash, "light.py"), args=TRAIN | fails)
    run.wait_until_back(0, 1)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={2}, returned={0, 1})
    (ended,) = run.named("step_exited", group=0, attempt=0)
    assert (ended["cause"], ended["error"]) == ("user_error", "RuntimeError: told to fail at step 10")
    assert "Traceback" in run.rank_log(0)
    assert "ftslurm/worker" not in run.rank_log(0).split("Traceback")[1]  # the user's frames only
    (ended,) = run.named("step_exited", group=1, attempt=0)
    assert (ended["cause"], ended["signal"]) == ("killed", signal.SIGSEGV)


@each_once
@pytest.mark.nightly
def test_a_group_that_comes_late_heals_from_those_that_have_begun_without_it(
    backend: Backend, lighthouse: list[str]
) -> None:
    late = f"""
import os, runpy, sys, time
if os.environ["REPLICA_GROUP_ID"] == "1":
    if os.environ["FTSLURM_ATTEMPT"] == "0":
        sys.exit("not yet")
    begun = sys.argv[sys.argv.index("--steps-file") + 1] + "-0-0"
    while not os.path.exists(begun):
        time.sleep(0.05)
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
"""
    # Ours waits for a group that the controller has announced for a sixth of longest_step_s, the first time.
    join = "job.longest_step_s=12"
    run = backend.start("groups.count=2", *lighthouse, join, script=backend.script(late, "toy.py"), args=TRAIN)
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0}, returned={1})
    assert run.steps(1)[0]["step"] > 1


@on_slurm
def test_kill_9_of_one_rank_takes_its_two_node_group_down_and_only_that(backend: Backend) -> None:
    shape = ("groups.count=2", "groups.nodes=2")
    run = backend.start(*shape, args=TRAIN)
    run.wait_for_steps(8, groups=2)
    at = run.kill(group=1, rank=1)
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0}, returned={1}, ranks=2)
    (ended,) = run.named("step_exited", group=1, attempt=0)
    assert (ended["cause"], ended["signal"], ended["rank"]) == ("killed", signal.SIGKILL, 1)
    assert float(str(ended["noticed"])) - at < 2.0
    first, second = run.named("step_launched", group=1)
    assert ended["node"] == first["nodes"][1]  # type: ignore[index]
    assert second["nodes"] == first["nodes"]
    assert second["hosts"] == second["nodes"]
    (back,) = run.named("group_joined", group=1, attempt=1)
    assert 0 < float(str(back["recovery_s"])) < 60


@each_once
@pytest.mark.nightly
def test_two_groups_killed_together_both_come_back(backend: Backend, lighthouse: list[str]) -> None:
    how = [WITH_DDP] if backend.name == "slurm" else []
    run = backend.start("groups.count=3", *lighthouse, *how, args=TRAIN)
    run.wait_for_steps(8, groups=3)
    for pid in [run.pid(0), run.pid(2)]:
        os.kill(pid, signal.SIGKILL)
    run.wait_until_back(0, 2)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={1}, returned={0, 2})
    ends = [float(str(run.named("step_exited", group=g, attempt=0)[0]["time"])) for g in (0, 2)]
    again = [float(str(run.named("step_launched", group=g, attempt=1)[0]["time"])) for g in (0, 2)]
    assert max(again) < max(ends) + 1.0  # side by side: the second does not wait for the first to be back
    assert min(again) < float(str(run.named("group_joined", group=0, attempt=1)[0]["time"]))


@here
@pytest.mark.nightly
def test_a_group_that_dies_while_it_connects_does_not_keep_the_survivors_waiting(
    backend: Backend,
) -> None:
    # The quorum without group 0 has group 2 in it, which dies before the others know its address. toy.py's process
    # groups time out after 10 s.
    dies = f"""
import os, runpy, signal, torchft
configure = torchft.ProcessGroupGloo.configure

def die(self, *args):
    if self._quorum_id is not None and os.environ["REPLICA_GROUP_ID"] == "2" and os.environ["FTSLURM_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    configure(self, *args)

torchft.ProcessGroupGloo.configure = die
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
"""
    run = backend.start("groups.count=3", *OURS, script=backend.script(dies, "toy.py"), args=TRAIN)
    run.wait_for_steps(8, groups=3)
    run.kill(group=0)
    run.wait_until_back(0, 2)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={1}, returned={0, 2})


@here
@pytest.mark.nightly
def test_the_survivors_of_four_groups_do_not_wait_for_the_process_groups_time_out(backend: Backend) -> None:
    # Gloo's ring: a survivor that is no neighbour of the dead group learns of it only when the neighbours hang up.
    # toy.py's process groups time out after 10 s; without the patch "abort-on-error" that is what survivors waited.
    run = backend.start("groups.count=4", "restart=never", WITH_DDP, args={"steps": 80, "step-time": 0.05})
    run.wait_for_steps(8, groups=4)
    run.kill(group=1)
    run.finish(4)
    run.check_training(80, survivors={0, 2, 3})


@here
@pytest.mark.nightly
@pytest.mark.parametrize(("groups", "killed"), [(3, [1]), (4, [1, 2])])
def test_kills_with_many_allreduces_under_way_stall_nobody_and_leave_nothing(
    backend: Backend, groups: int, killed: list[int]
) -> None:
    # toy.py's process groups time out after 10 s, for which about one kill in ten stalled the survivors.
    args = {"open-end": True, "step-time": 0, "layers": 8}
    run = backend.start(f"groups.count={groups}", *OURS, "restart.max_per_group=99", "restart.backoff_s=0", args=args)
    run.wait_for_steps(8, groups=groups)
    held = []
    for attempt in range(1, 21):
        for group in killed:
            run.kill(group)
        run.wait_until_back(*killed, attempt=attempt)
        held.append(sum(len(os.listdir(f"/proc/{run.pid(0)}/{what}")) for what in ("fd", "task")))
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0, groups - 1}, returned={*killed})
    assert held[-1] < min(held) + 10


@here
@pytest.mark.light
def test_the_drill_kills_a_group_half_way_and_the_summary_tells_how_long_it_took(backend: Backend) -> None:
    run = backend.start("groups.count=2", "faults=kill_one", "job.total_steps=80", args={"steps": 80, "step-time": 0.1})
    run.wait_until_back(1)
    run.finish().check_training(80, survivors={0}, returned={1})
    (drill,) = run.named("fault_injected")
    assert (drill["group"], drill["kind"]) == (1, "kill")
    assert int(str(drill["step"])) >= 40
    assert "group 1 attempt 0 died" in run.text
    assert "relaunched as attempt 1" in run.text
    assert "group 1 is back" in run.text
    assert f"run {run.dir.name} succeeded" in run.text


@each_once
@pytest.mark.light
def test_the_lighthouse_killed_again_and_again_costs_no_step_and_no_group(
    backend: Backend, lighthouse: list[str]
) -> None:
    # torchft's Lighthouse keeps no state: if not all groups were required, the first one back would step alone.
    run = backend.start("groups.count=2", f"groups.min={1 if lighthouse is OURS else 2}", *lighthouse, args=TRAIN)
    for number in range(3):
        run.until(lambda n=number: len(run.named("step_ready", unit="lighthouse")) == n + 1, "the Lighthouse")
        run.until(lambda n=number: len(run.steps(0)) >= 10 * (n + 1), "some steps")
        with busy_cores() if number == 1 else contextlib.nullcontext():
            time.sleep(0.2)
            run.kill_lighthouse()
            time.sleep(1.0)
    run.wait_for("step_ready", unit="lighthouse", attempt=3)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0, 1})
    assert len(run.named("step_launched", unit="lighthouse")) == 4
    assert [e["restarts"] for e in run.named("run_finished")] == [0]
    if lighthouse is OURS:
        quorums = [s["quorum"] for s in run.steps(0)]
        assert quorums == sorted(quorums)


@on_slurm
@pytest.mark.light
def test_a_group_that_dies_while_the_lighthouse_is_away_is_evicted_all_the_same(backend: Backend) -> None:
    run = backend.start("groups.count=2", *OURS, args=TRAIN)
    run.wait_for_steps(8, groups=2)
    run.kill_lighthouse()
    time.sleep(0.05)
    run.kill(group=1)
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0}, returned={1})


@each_once
@pytest.mark.light
def test_a_lighthouse_whose_port_is_taken_meanwhile_moves_and_the_groups_follow(
    backend: Backend, lighthouse: list[str]
) -> None:
    run = backend.start("groups.count=2", "groups.min=2", *lighthouse, args=TRAIN)
    run.wait_for_steps(10, groups=2)
    (up,) = run.named("step_ready", unit="lighthouse")
    run.kill_lighthouse()
    with grab(urlsplit(str(up["url"])).port):  # a connection gets no answer
        run.until(lambda: len(run.named("step_ready", unit="lighthouse")) == 2, "the Lighthouse elsewhere")
        before = len(run.steps(0))
        run.until(lambda: len(run.steps(0)) > before + 10, "further steps")
    run.kill_lighthouse()
    run.wait_for("step_ready", unit="lighthouse", attempt=2)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0, 1})
    urls = [e["url"] for e in run.named("step_ready", unit="lighthouse")]
    assert urls[0] != urls[1]
    assert [e["restarts"] for e in run.named("run_finished")] == [0]


@on_slurm
def test_an_unmodified_torchrun_style_script_runs(backend: Backend) -> None:
    run = backend.start("groups.count=2", "job.args=['12']", script="torchrun_style.py").finish()
    assert len(run.named("group_joined")) == 2, run.rank_log(0)


@pytest.mark.parametrize(
    ("backend", "lighthouse"),
    [("local", OURS), ("local", STOCK)],
    indirect=["backend"],
    **ids,
)
@pytest.mark.nightly
def test_a_script_with_a_store_of_its_own_needs_torchfts_lighthouse_and_is_told_so(
    backend: Backend, lighthouse: list[str]
) -> None:
    own = f"""
import os, runpy
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}}
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
"""
    run = backend.start("groups.count=2", *lighthouse, script=backend.script(own, "toy.py"), args={"steps": 10})
    if lighthouse is STOCK:
        run.finish().check_training(10, survivors={0, 1})
        return
    refused = run.wait_for("quorum_refused")
    assert "lighthouse=torchft" in str(refused["reason"])
    run.until(lambda: "store of its own" in run.text, "what people see")


def longest_gap(run: Run, group: int) -> float:
    times = [s["time"] for s in run.steps(group)]
    return max(b - a for a, b in itertools.pairwise(times))


def grab(port: int) -> socket.socket:
    """Listen on a port as soon as it is free."""
    deadline = time.monotonic() + 5.0
    while True:
        try:
            return socket.create_server(("", port), backlog=200)
        except OSError:
            assert time.monotonic() < deadline
