"""A controller that is killed or fails is back within a second, without an effect on the training."""

from __future__ import annotations

import time

import pytest
from cluster import Cluster
from harness import Backend, Run

pytestmark = [pytest.mark.slurm, pytest.mark.light]
BACK_S = 30.0  # it takes less than one on an idle machine, and more than 5 on a busy one that is slow
GAP_S = 6.0  # of the groups' next commit: steps take 0.2 s, a Lighthouse that died would cost 10
ANSWERS = ("command_done", "command_refused", "scaled")  # to a request


def crash(run: Run, units: tuple[str, ...]) -> None:
    """Kill the controller; check that the next one adopts all these steps."""
    since, times = time.time(), run.kill_controller()
    run.until(lambda: len(run.named("run_started")) > times, "the next controller", BACK_S)
    for unit in units:
        run.until(lambda u=unit: len(run.named("step_adopted", unit=u)) == times, f"{unit} is adopted")
    before = [len(run.steps(group)) for group in (0, 1)]
    run.until(lambda: all(len(run.steps(g)) >= before[g] + 5 for g in (0, 1)), "5 steps more")
    assert max(run.longest_gap(group, since - 0.5) for group in (0, 1)) < GAP_S


@pytest.mark.parametrize("mode", ["slurm", pytest.param("array", marks=pytest.mark.nightly)])
def test_a_killed_controller_comes_back_and_adopts_the_groups_and_the_lighthouse(mode: str, slurm: Backend) -> None:
    settings = [f"cluster.kind={mode}", "groups.count=2", "groups.workers=2", "standby.count=1"]
    run = slurm.start(*settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for("step_ready", unit="standby-000")
    run.wait_for_steps(5, 2)
    units = ("lighthouse", "group-0000", "group-0001", "standby-000")

    crash(run, units)
    crash(run, units)
    assert [e["leader"] for e in run.named("run_started")] == [1, 2, 3]
    assert "SIGKILL" in str(run.named("run_started")[1]["after"])
    assert run.named("step_exited") == []
    assert len(run.named("step_launched")) == len(units)

    run.kill(1)  # the successor watches the adopted steps
    run.wait_until_back(1)
    assert run.named("step_exited", unit="group-0001")[0]["cause"] == "killed"
    steps = run.end_soon()
    run.finish()
    run.check_training(steps, survivors={0}, returned={1}, ranks=2)


LEAVES = """
import json, os, signal, sys, time
from light_worker import Manager
manager, me = Manager(), (os.environ["REPLICA_GROUP_ID"], os.environ["RANK"], os.environ["FTSLURM_ATTEMPT"])
print("pid", os.getpid(), flush=True)
while manager.current_step() < 400:
    if manager.current_step() == 40 and me == ("0", sys.argv[1], "0"):
        journal = open(os.path.join(os.environ["FTSLURM_RUN_DIR"], "events.jsonl"))
        os.kill(max(json.loads(line).get("pid", 0) for line in journal if '"run_started"' in line), signal.SIGKILL)
        if sys.argv[2] == "term":
            os.kill(os.getppid(), signal.SIGTERM)  # as Slurm sends it, which this script obeys
            time.sleep(0.5)
        os._exit(0)
    manager.start_quorum()
    manager.wait_quorum()
    time.sleep(0.05)
    manager.should_commit()
"""


@pytest.mark.parametrize(("rank", "how"), [(1, "exit"), (0, "term"), (1, "term")])
def test_a_rank_that_leaves_alone_as_the_controller_dies_is_judged_by_the_next_one(
    rank: int, how: str, slurm: Backend
) -> None:
    script = slurm.script(LEAVES)
    run = slurm.start("groups.count=2", "groups.workers=2", f"job.args=[{rank},{how}]", script=script)
    run.wait_until_back(0)
    run.finish(warns=how == "exit")
    assert len(run.named("run_started")) == 2
    first, *rest = run.named("step_exited", group=0)
    assert (first["cause"], first["rank"]) == ("left_early" if how == "exit" else "left_on_sigterm", rank)
    assert [end["cause"] for end in (*rest, *run.named("step_exited", group=1))] == ["ok", "ok"]


def die(backend: Backend, when: str) -> None:
    """Have the controller of the next run die once, at this record."""
    order = backend.tmp_path / "when"
    order.write_text(when)
    backend.environ["FTSLURM_TEST_KILL"] = str(order)


def at_night(when: str) -> object:
    return pytest.param(when, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    "when",
    [
        "step_launched:group-0001",  # none of the run's first launches is made
        "step_exited",
        at_night("step_exited:before"),
        at_night("step_launched:group-0001:before"),
        at_night("step_ready"),
        at_night("step_ready:before"),
        at_night("group_joined:before"),
        at_night("group_joined"),
        at_night("restart_scheduled"),
    ],
)
def test_what_a_controller_had_decided_is_done_by_the_next_one(when: str, slurm: Backend) -> None:
    """It dies when a decision is on disk and not carried out, or just before it is on disk."""
    die(slurm, when)
    run = slurm.start("groups.count=2", args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(5, 2)
    run.kill(1)
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish()
    assert run.named("run_started")[-1]["leader"] == 2
    assert [line["seq"] for line in run.events] == list(range(1, 1 + len(run.events)))
    exits = [(line["unit"], line["attempt"], line["cause"]) for line in run.named("step_exited", unit="group-0001")]
    assert exits == [("group-0001", 0, "killed"), ("group-0001", 1, "ok")]
    assert [line["attempt"] for line in run.named("step_launched", unit="group-0001")] == [0, 1]
    assert run.named("group_joined", group=1)[-1]["recovery_s"]
    run.check_training(steps, survivors={0}, returned={1})


def is_there(run: Run, group: int) -> bool:
    """Return whether the last attempt of a group has committed a step."""
    attempt = run.named("step_launched", group=group)[-1]["attempt"]
    return bool(run.named("group_joined", group=group, attempt=attempt))


@pytest.mark.parametrize("words", [("restart", "--group", "1"), ("scale", "1"), ("drain", "NODE")])
def test_a_request_in_a_takeover_never_ends_the_only_group_with_the_state(
    words: tuple[str, ...], slurm: Backend
) -> None:
    """Until the groups are adopted nobody knows that the other one is dead."""
    run = slurm.start("groups.count=2", "cluster.spare_nodes=1", args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(5, 2)
    survivor = 0 if words[0] == "scale" else 1
    node = run.node_of(survivor, 0)
    run.kill(1 - survivor)
    run.kill_controller()
    run.ask(*(node if word == "NODE" else word for word in words))
    run.until(lambda: len(run.named("run_started")) == 2, "the next controller")
    run.until(lambda: any(run.named(name) for name in ANSWERS), "the answer")
    if words[0] != "scale":
        run.wait_until_back_at_last(1 - survivor)
        run.until(lambda: is_there(run, survivor), "the other is back, if it was restarted")
    run.end_soon()
    run.finish()
    assert not run.named("full_restart")


def test_a_controller_that_crashes_again_and_again_ends_the_run_and_says_why(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(2, 2)
    for _ in range(2):
        times = run.kill_controller()
        run.until(lambda t=times: len(run.named("run_started")) > t, "the next controller")
    run.kill_controller()
    run.finish(1, outcome="failed")
    reason = str(run.named("run_finished")[0]["reason"])
    assert "killed by SIGKILL, 3 times within 60 s" in reason


@pytest.mark.parametrize("mode", ["slurm", "array"])
def test_a_run_whose_state_is_damaged_ends_and_says_what_to_do(mode: str, slurm: Backend) -> None:
    run = slurm.start(f"cluster.kind={mode}", "groups.count=2", args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(2, 2)
    with (run.dir / "state/0001.jsonl").open("ab") as file:
        file.write(b"damaged\n")
    run.kill_controller()
    assert run.process.wait(60) == 1
    reason = str(run.wait_for("run_finished", outcome="failed")["reason"])
    assert "0001.jsonl is damaged" in reason
    assert reason.endswith(f"ftslurm resume {run.dir}")
    for said in (run.text, run.ask("status")[1]):
        assert said.count("is damaged") == 1, said
    run.until(lambda: not run.processes(), "all processes have ended")


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        pytest.param("slurm", {}, marks=pytest.mark.nightly),
        ("slurm", {"health.lost_after_s": 4}),
        pytest.param("array", {"health.lost_after_s": 4}, marks=pytest.mark.nightly),
    ],
)
def test_a_controller_that_dies_while_slurmctld_is_away_adopts_all_steps_when_it_is_back(
    mode: str, settings: dict[str, float], slurm: Backend, slurm_cluster: Cluster
) -> None:
    options = [f"cluster.kind={mode}", "groups.count=2", *(f"{name}={value}" for name, value in settings.items())]
    run = slurm.start(*options, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(4, 2)
    units = ("lighthouse", "group-0000", "group-0001")
    with slurm_cluster.without_slurmctld():
        run.kill_controller()
        run.until(lambda: len(run.named("run_started")) == 2, "the next controller", BACK_S)
        time.sleep(5 * settings.get("health.lost_after_s", 10.0) / 2)  # its probes are sent, and sent again
    run.until(lambda: all(run.named("step_adopted", unit=unit) for unit in units), "all are adopted", BACK_S)
    steps = run.end_soon()
    run.finish()
    assert {exit_["attempt"] for exit_ in run.named("step_exited")} == {0}
    run.check_training(steps, survivors={0, 1}, returned=set())
