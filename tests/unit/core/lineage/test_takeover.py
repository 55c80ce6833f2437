"""A controller is lost or makes way, and its successor adopts the running steps: histories that begin with a past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import said
from fuzz import tried
from histories import (
    CHECKPOINT,
    Moment,
    Story,
    config,
    finished,
    killed,
    node_lost,
    pilot,
    play,
    ready,
    stepped,
    stop,
    store,
)
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import read_node_fates
from steps import A0, A1, ANN, B0, B1, LIGHT0, LIGHT1, S0

from ftslurm.config.schema import Config
from ftslurm.controller.translate import read_attach
from ftslurm.core.jobs.supply import SPARE_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Allocation, Evidence, Exit, Job, Node, Nodes, Out, Pace, Phase, Place, StepId
from ftslurm.core.state.past import Live, Past, Scheduled
from ftslurm.protocol import messages as msg
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.stages import Stage

OLD, NEW = "http://old:1", "http://new:2"
PLACES = {A0: Place(("n1",), 0, "81_0"), B0: Place(("n2",), 0, "81_1"), S0: Place(("n3",), 0, "81_2")}
UP = (12, said.lighthouse_up(LIGHT1, NEW))


def array(**sections: Any) -> Config:
    lighthouse = {"kind": "ftslurm"} | sections.pop("lighthouse", {})
    made = config(lighthouse=lighthouse, **sections)
    made.cluster.kind, made.cluster.controller = "array", "here"
    made.orphan_after_s = 60.0
    return made


def live(step: StepId, place: Place | None = None, hosts: int = 1, joined: float | None = 3.0) -> Live:
    where = place or PLACES[step]
    slurm_step = f"9{where.nodes[0][1]}.0"
    return Live(step.unit, step, step.attempt, where, where.nodes[:1] * hosts, 1.0, slurm_step, 0.5, joined, away=0.5)


def past(*steps: Live, step: int = 40, **fields: Any) -> Past:
    attempts = {"lighthouse": 0, "group-0000": 0, "group-0001": 0}
    return Past(attempts, step, {one.unit: one for one in steps or (live(A0), live(B0))}, **fields)


def opening(before: Past, **granted: Any) -> ev.Event:
    return ev.Granted(Allocation("90", ()), past=before, **granted)


def test_save_says_that_the_groups_are_being_connected_to() -> None:
    asks = ev.Asked("save", "c1", "ann")
    story = play((10, opening(past(live(A0), live(B0)))), (11, ALL), (11.2, asks), config=array())
    (refused,) = story.records("command_refused")
    assert refused["reason"].startswith("another controller has just taken over and connects to the groups")


def jobs(*names: str, state: str = "RUNNING") -> ev.Event:
    nodes = {"81_0": "n1", "81_1": "n2", "81_2": "n3", "81_3": "n4"}
    return ev.JobsSeen(tuple(Job(n, id=f"{n}!", state=state, nodes=(nodes[n],)) for n in names), asked=11.0)


def word(of: StepId, task: int = 0, **fields: Any) -> list[ev.Event]:
    """Return the hello and the report of an adopted guard: all is done, but for the fields given."""
    known: dict[str, Any] = {"ready": True, "assigned": True, "begun": True, "lighthouse": OLD, "floor": 3, "at": 41}
    known |= {"store": (of.unit, 29500) if task == 0 else None}
    return [said.hello(of, task, PLACES[of].nodes[0], "9.0"), said.adopted(of, task, **(known | fields))]


ALL = jobs("81_0", "81_1", "81_2")
ADOPTED: tuple[Moment, ...] = ((10, opening(past())), (11, ALL), (11.5, word(A0), word(B0)), UP)


def adopted(*more: Moment, settings: Config | None = None) -> Story:
    return play(*ADOPTED, *more, config=settings or array())


def test_what_runs_is_gone_to_and_nothing_but_the_lighthouse_is_launched() -> None:
    story = play(*ADOPTED[:2], config=array())
    assert story.all(act.Attach) == [act.Attach(A0, PLACES[A0], "91.0"), act.Attach(B0, PLACES[B0], "92.0")]
    assert story.ids(act.Launch) == [LIGHT1]
    assert story.phases() == [Phase.STARTING] * 2


def test_the_versions_of_torchft_are_known_again() -> None:
    words = (11.5, word(A0, torchft="torchft 0.2.0"), word(B0, torchft="torchft 0.2.0"))
    back = (15, ready(B1, "n2", torchft="torchft 0.3.0")), (16, store(B1)), (17, killed(B1))
    story = play(*ADOPTED[:2], words, UP, (13, killed(B0)), *back, config=array())
    last = story.records("step_exited")[-1]
    assert (last["cause"], last["attempt"]) == ("other_version", 1)
    assert last["error"] == "group 1 has torchft 0.3.0 on n2, and group 0 torchft 0.2.0 on n1"


def test_the_limit_for_hangs_goes_on_from_what_was_learnt() -> None:
    story = play((10, opening(past(longest_s=400.0, seen=99))), (11, ALL), config=array())
    standstill = story.state.standstill
    assert (standstill.longest_s, standstill.seen) == (400.0, 99)


def test_what_was_saved_before_the_last_known_comparison_may_be_restored_whoever_leads() -> None:
    settings = array()
    settings.health.compare_every, settings.health.on_divergence = 10, "stop"
    differ = [said.digested(A0, 50, "a" * 16), said.digested(B0, 50, "b" * 16)]
    story = play((10, opening(past(equal=35))), *ADOPTED[1:], (14, differ), config=settings)
    assert {one.after for one in story.all(act.DistrustCheckpoints)} == {35}


def test_a_group_that_was_told_as_slow_is_told_when_it_is_so_no_longer() -> None:
    before = past(live(A0), replace(live(B0), pace=Pace(0.4, 0.5, 2.0)))
    even, later = (
        [said.progressed(step, number, 3, 2, 9, 0, own_s=0.2, step_s=0.5) for step in (A0, B0)] for number in (50, 90)
    )
    moments = (10, opening(before)), (11, ALL), (11.5, word(A0), word(B0)), (20, even), (22,), (52, later), (54,)
    story = play(*moments, config=array())
    assert [(record["group"], record["slow"]) for record in story.records("group_slow")] == [(1, False)]


def test_once_heard_of_groups_are_what_they_were_and_learn_of_the_new_lighthouse() -> None:
    story = adopted((13, stepped(A0, 45, committed=30)))
    assert story.phases() == [Phase.RUNNING] * 2
    assert all(unit.joined for unit in story.state.groups)
    assert story.all(act.Assign) + story.all(msg.Begin) + story.records("group_joined") == []
    assert story.all(msg.LighthouseMoved) == [
        act.Send(A0, msg.LighthouseMoved(NEW)),
        act.Send(B0, msg.LighthouseMoved(NEW)),
    ]
    assert [(a.group, a.attempt, a.store) for a in story.sent(msg.Member)] == [
        (0, 0, "group-0000:29500/store"),
        (1, 0, "group-0001:29500/store"),
    ]
    assert (story.state.lineage.step, story.state.lineage.lost, story.outcome()) == (45, None, None)
    known = {"unit": "group-0000", "group": 0, "attempt": 0, "slurm_step": "9.0"}
    assert known.items() <= story.records("step_adopted")[0].items()


def test_who_has_joined_while_nobody_led_is_told_of() -> None:
    story = play(
        (10, opening(past(live(A0), live(B0, joined=None)))), (11, ALL), (11.5, word(A0), word(B0)), config=array()
    )
    (back,) = story.records("group_joined")
    assert back.items() >= {"group": 1, "attempt": 0, "step": 41, "seconds": 10.5, "recovery_s": 11.0}.items()
    assert set(back["phases"].values()) == {None}  # no controller has seen them
    late = play(
        (10, opening(past(live(A0), live(B0, joined=None)))),
        (11, ALL),
        (11.5, word(A0), word(B0, at=None)),
        (12, stepped(B0, 42)),
        config=array(),
    )
    (back,) = late.records("group_joined")
    assert back.items() >= {"group": 1, "step": 42, "recovery_s": 11.5, "participants": 2}.items()


def test_afterwards_a_group_that_fails_is_restarted_like_any_other() -> None:
    story = adopted((20, killed(B0)), (21,))
    assert story.ids(act.Launch, since=20) == [B1]
    assert story.phases() == [Phase.RUNNING, Phase.STARTING]


def test_before_slurm_has_told_of_the_jobs_nobody_is_gone_to_and_nothing_is_given_up() -> None:
    story = play(ADOPTED[0], (30,), config=array())
    assert story.all(act.Attach) == []
    assert (story.phases(), story.outcome()) == ([Phase.STARTING] * 2, None)


def test_a_unit_waits_for_the_words_of_all_its_tasks() -> None:
    two = past(live(A0, hosts=2), live(B0, hosts=2))
    words = (12, word(A0), word(B0), word(B0, 1))
    story = play((10, opening(two)), (11, ALL), words, config=array(groups={"workers": 2}))
    assert story.phases() == [Phase.STARTING, Phase.RUNNING]


def test_who_had_not_begun_begins_and_who_had_not_been_assigned_is() -> None:
    early = past(step=0)
    first = word(A0, begun=False, at=None)
    second = word(B0, begun=False, assigned=False, store=None, lighthouse=None, at=None)
    story = play((10, opening(early)), (11, ALL), (11.5, first, second), UP, config=array())
    assert story.ids(act.Assign) == [B0]
    assert story.all(msg.Begin) == []  # at the first start all begin together
    story.turn(13, [said.store_up(B0, "n2", 29500)])
    assert story.ids(msg.Begin) == [A0, B0]


def test_a_group_that_heals_meanwhile_is_still_watched_as_one_that_comes_back() -> None:
    story = play((10, opening(past())), (11, ALL), (11.5, word(A0), word(B0, at=None, floor=39)), UP, config=array())
    assert [unit.joined for unit in story.state.groups] == [True, False]
    story.turn(13, [stepped(B0, 39)])  # below the step that it had to heal to
    assert story.ids(act.Kill) == [B0]


def test_a_standby_goes_on_waiting_and_one_that_has_taken_over_is_the_group() -> None:
    taken = Live("group-0001", S0, 1, PLACES[S0], ("n3",), 1.0, "93.0")
    story = play((10, opening(past(live(A0), taken))), (11, ALL), (11.5, word(A0), word(S0)), UP, config=array())
    assert story.state.groups[1].id == S0
    assert story.state.groups[1].attempt == 1
    waits = past(live(A0), live(B0), live(S0))
    idle = word(S0, assigned=False, begun=False, store=None, lighthouse=None, at=None)
    words, settings = (11.5, word(A0), word(B0), idle), array(standby={"count": 1})
    story = play(
        (10, opening(waits)), (11, ALL), words, UP, (20, killed(B0)), (20.1, ev.NodeFate("n2", False)), config=settings
    )
    (assigned,) = story.all(act.Assign)
    assert (assigned.id, assigned.group, assigned.attempt) == (S0, 1, 1)


def test_a_standby_that_was_taken_and_gives_no_store_is_not_waited_for_longer_under_another_controller() -> None:
    taken = Live("group-0001", S0, 1, PLACES[S0], ("n3",), 1.0, "93.0")
    silent = word(S0, begun=False, store=None, at=None)
    story = play((10, opening(past(live(A0), taken))), (11, ALL), (11.5, word(A0), silent), UP, (60,), config=array())
    assert story.times(act.Kill, S0)[0] == 41.5


# --- steps that cannot be adopted ------------------------------------------------------------------------------------


def test_a_step_that_does_not_answer_is_a_failed_one_and_the_others_go_on() -> None:
    sign = read_attach(Evidence(0, "n2", code=ExitCode.NO_GUARD))
    gone = (12.9, ev.TaskFailed(B0, sign), ev.Ended(B0, 76))
    story = play(*ADOPTED[:2], (11.5, word(A0)), UP, gone, (14, ALL), config=array())
    assert story.ids(act.Launch, since=12.9) == [B1]
    (ended,) = story.records("step_exited")
    assert (ended["cause"], ended["attempt"]) == ("unknown", 0)
    assert "has not outlived its controller" in ended["error"]


def test_codes_of_the_way_to_a_step_are_no_codes_of_a_script() -> None:
    assert read_attach(Evidence(0, "n1", code=3)) == Evidence(0, "n1", code=3)
    assert read_attach(Evidence(0, "n1", code=ExitCode.END_REPORTED)) is None  # its end is in the journal
    assert cast(Evidence, read_attach(Evidence(0, "n1", code=ExitCode.NO_GUARD))).cause is Cause.UNKNOWN
    assert cast(Evidence, read_attach(Evidence(0, "n1", code=ExitCode.DETACHED))).signal == 9


def test_one_tasks_report_of_the_scripts_end_counts_though_the_others_are_silent() -> None:
    wide, settings = past(live(A0, hosts=2), live(B0, hosts=2)), array(groups={"workers": 2})
    story = play((10, opening(wide)), (11, ALL), (11.5, word(A0), word(A0, 1)), config=settings)
    failed = ev.TaskFailed(B0, Evidence(1, None, code=1, error="ValueError: nine"))
    story.turn(12, [*word(B0, 1), failed])
    story.turn(13, [ev.Ended(B0, ExitCode.END_REPORTED)])
    (ended,) = story.records("step_exited")
    assert (ended["cause"], ended["error"], ended["rank"]) == ("user_error", "ValueError: nine", 1)


def test_while_srun_cannot_start_it_is_tried_again_for_as_long_as_a_step_waits() -> None:
    fails = [(11.5 + 3 * n, ev.Ended(B0, 78, error="slurm_load_jobs error", launcher_failed=True)) for n in range(3)]
    again = [(12 + 3 * n, ALL) for n in range(4)]
    moments = sorted([*ADOPTED[:2], (11.2, word(A0)), *fails, *again], key=lambda moment: moment[0])
    story = play(*moments, (22, word(B0)), config=array())
    assert len([a for a in story.all(act.Attach) if a.id == B0]) == 4
    assert story.phases() == [Phase.RUNNING] * 2
    assert story.records("step_exited") == []
    late = play(*moments, (71, ev.Ended(B0, 78, error="no such step", launcher_failed=True)), config=array())
    (ended,) = late.records("step_exited")
    assert (ended["cause"], ended["error"], ended["launched"]) == ("unknown", "no such step", True)  # it has trained


def test_a_job_that_is_gone_has_taken_its_step_along() -> None:
    again = ev.JobsSeen(
        (Job("81_1", id="81_1!", state="RUNNING", nodes=("n9",)),), asked=11.0
    )  # requeued, and elsewhere
    for seen in (jobs("81_0", "81_2"), jobs("81_1", state="PENDING"), again):
        story = play((10, opening(past(replace(live(B0), step=38)))), (11, seen), config=array())
        (ended,) = story.records("step_exited")
        assert (ended["unit"], ended["cause"], ended["step"]) == ("group-0001", "preempted", 38)
        assert story.all(act.Attach) == []


@pytest.mark.parametrize("state", ["down*", "mixed*", "idle+not_responding"])
def test_a_step_whose_node_died_while_nobody_led_is_started_elsewhere(state: str) -> None:
    slurm, places = config(cluster={"kind": "slurm"}), {A0: Place(("n1",)), B0: Place(("n2",))}
    left = past(*(replace(live(step), place=place) for step, place in places.items()))
    sign = read_attach(Evidence(0, "n2", code=ExitCode.NO_GUARD))
    begun = ev.Granted(Allocation("7", ("n1", "n2", "n3")), CHECKPOINT, left)
    story = play((10, begun), (11.5, word(A0)), UP, (13, ev.TaskFailed(B0, sign), ev.Ended(B0, 76)), config=slurm)
    assert story.ids(act.Launch) == [LIGHT1]  # Slurm is asked first
    story.turn(13.2, read_node_fates(f"NodeName=n2 State={state.upper()}"))
    assert [launch.place.nodes for launch in story.all(act.Launch) if launch.id == B1] == [("n3",)]


@pytest.mark.parametrize("saved", [None, CHECKPOINT])
def test_if_none_is_left_the_state_is_lost(saved: Any) -> None:
    sign = read_attach(Evidence(0, "n2", code=ExitCode.NO_GUARD))
    gone = [event for s in (A0, B0) for event in (ev.TaskFailed(s, sign), ev.Ended(s, 76, checkpoint=saved))]
    story = play(*ADOPTED[:2], UP, (12.9, gone), (14, ALL), (20,), config=array())
    if saved is None:
        assert "no group is left that holds the state of step 40" in story.reason()
    else:
        assert len(story.records("full_restart")) == 1
        assert sorted(story.ids(act.Launch, since=13), key=str) == [A1, B1]


def test_what_ran_in_the_controllers_own_job_has_died_with_it() -> None:
    lighthouse = Live("lighthouse", LIGHT0, 0, Place(("n1",)), ("n1",), 1.0, home="7.0")
    own = [replace(live(step, Place((node,))), home="7.0") for step, node in ((A0, "n1"), (B0, "n2"))]
    own[1] = replace(own[1], diverged=Evidence(0, "n2", error="other weights", cause=Cause.DIVERGED), step=39)
    before = past(lighthouse, *own, home="7.0", host="n1.cluster", node="n1")
    steps = config()
    steps.cluster.kind = "slurm"
    story = play((10, opening(before, homes=frozenset({"7.1", "n1.cluster"}))), config=steps)
    assert story.all(act.Attach) == []
    assert "the job was requeued, and with all groups the state of step 40" in story.reason()
    ends = {e["unit"]: (e["cause"], e["node"], e["step"]) for e in story.records("step_exited")}
    assert ends == {
        "lighthouse": ("cancelled", None, None),
        "group-0000": ("node_lost", "n1", None),
        "group-0001": ("preempted", None, 39),
    }
    assert [len(unit.exits) for unit in story.state.groups] == [1, 1]
    assert [(one.group, one.attempt) for one in story.all(act.DistrustCheckpoints)] == [(1, 0)]


def test_all_that_runs_in_a_crashed_controllers_job_is_adopted_with_the_lighthouse() -> None:
    steps = config(lighthouse={"kind": "ftslurm"})
    steps.cluster.kind = "slurm"
    lighthouse = Live("lighthouse", LIGHT0, 0, Place(("n1",)), ("n1",), 1.0, "7.0", home="7.0")
    own = [replace(live(step, Place((node,))), home="7.0") for step, node in ((A0, "n1"), (B0, "n2"))]
    before = past(lighthouse, *own, home="7.0", over={"group-0002": "restart=never"})
    begun = ev.Granted(Allocation("7", ("n1", "n2", "n3")), past=before, homes=frozenset({"7.0", "n1"}))
    up = [said.hello(LIGHT0, 0, "n1", "7.0"), said.adopted(LIGHT0), said.lighthouse_up(LIGHT0, OLD)]
    story = play((10, begun), (11, up, word(A0), word(B0)), (12, stepped(A0, 45, committed=30)), config=steps)
    assert {a.id for a in story.all(act.Attach)} == {LIGHT0, A0, B0}
    assert story.all(act.Launch) == []
    assert story.phases() == [Phase.RUNNING] * 2
    assert story.state.lighthouse.phase is Phase.RUNNING
    assert {(a.id, a.message.group, a.message.attempt) for a in story.all(msg.Member)} == {
        (LIGHT0, 0, 0),
        (LIGHT0, 1, 0),
    }
    assert story.all(msg.LighthouseMoved) == []
    gone = play((10, begun), (11, word(A0), word(B0), ev.Ended(LIGHT0, code=76)), config=steps)
    assert gone.ids(act.Launch) == [LIGHT1]  # at once: it was no dud


def test_progress_that_is_heard_before_all_guards_of_a_step_is_no_second_joining() -> None:
    two = array(groups={"workers": 2})
    both = [live(step, hosts=2) for step in (A0, B0)]
    words = [(12 + i / 10, word(step, task)) for i, (step, task) in enumerate([(A0, 0), (B0, 0), (A0, 1), (B0, 1)])]
    story = play((10, opening(past(*both))), (11, ALL), words[0], (12.05, stepped(A0, 45, 30)), *words[1:], config=two)
    assert story.records("group_joined") == []
    assert len(story.records("step_adopted")) == 2
    assert story.phases() == [Phase.RUNNING] * 2
    assert story.state.lineage.step == 45


@pytest.mark.parametrize(("then", "at"), [((11.5, word(A0), word(B0)), 11.5), ((15.1,), 15.1)])
def test_a_lighthouse_whose_controller_has_left_serves_until_the_groups_can_be_told_of_the_next(
    then: Moment, at: float
) -> None:
    left = Live("lighthouse", LIGHT0, 0, Place(()), (), 1.0, home="")
    story = play((10, opening(past(left, live(A0), live(B0)), homes=frozenset({"n9"}))), (11, ALL), config=array())
    assert story.ids(act.Launch) == []
    story.turn(*then[:1], list(then[1:]))
    assert story.ids(act.Launch, since=at) == [LIGHT1]
    assert [e["unit"] for e in story.records("step_exited")] == ["lighthouse"]


# --- other state that the successor keeps ----------------------------------------------------------------------------


def test_who_had_finished_or_was_given_up_is_not_launched_again() -> None:
    ended = Exit(0, 9.0, Cause.OK, ("n2",), step=40)
    over = past(live(A0), over={"group-0001": None}, exits={"group-0001": (ended,)})
    story = play((10, opening(over)), (11, ALL), (11.5, word(A0)), UP, (13, finished(A0)), config=array())
    assert story.phases() == [Phase.SUCCEEDED] * 2
    assert story.ids(act.Launch) == [LIGHT1]
    assert story.outcome() == "succeeded"


def test_why_a_group_was_given_up_is_told_by_the_next_controller_too() -> None:
    both = array()
    both.groups.min = 2
    over = past(live(A0), over={"group-0001": "exit code 3 on n2; restart.max_per_group=0"})
    story = play((10, opening(over)), (11, ALL), config=both)
    assert story.outcome() == "failed"
    assert "(group 1: exit code 3 on n2; restart.max_per_group=0)" in story.reason()


def test_a_full_restart_under_way_goes_on() -> None:
    restart = past(step=40, resuming=30)
    words = [word(step, begun=False, at=None) for step in (A0, B0)]
    story = play((10, opening(restart)), (11, ALL), (11.5, *words), UP, config=array())
    assert (story.state.lineage.resuming, story.state.lineage.resume_step) == (True, 30)
    assert {(b.heals, b.floor) for b in story.sent(msg.Begin)} == {(False, 30)}


def test_a_run_that_was_scaled_has_as_many_groups_and_drills_are_not_done_twice() -> None:
    more = past(live(A0), groups=3, drilled=2)
    story = play((10, opening(more)), config=array(groups={"max": 3}))
    assert [unit.name for unit in story.state.groups] == ["group-0000", "group-0001", "group-0002"]
    assert story.state.injected == {0, 1}
    fewer = play((10, opening(past(live(A0), groups=1))), config=array())
    assert (len(fewer.state.groups), dict(fewer.state.parked)) == (1, {"group-0001": 0})


def test_a_group_that_scale_has_told_to_leave_is_adopted_and_leaves() -> None:
    story = play((10, opening(past(groups=1))), (11, ALL), config=array(groups={"min": 1}))
    assert set(story.ids(act.Attach)) == {A0, B0}
    story.turn(11.5, [*word(A0), *word(B0)])
    assert story.ids(msg.Stop) == [B0]
    story.turn(12, [ev.Ended(B0, code=0)])
    assert [(r["unit"], r["cause"]) for r in story.records("step_exited")] == [(B0.unit, "cancelled")]
    assert (len(story.state.groups), dict(story.state.parked)) == (1, {"group-0001": 0})
    story.wait(500)
    assert story.outcome() is None


def test_a_restart_that_was_due_is_not_launched_sooner_by_another_controller() -> None:
    due, killed = Scheduled("group-0001", 40.0, "restart: killed", 8.0), Exit(0, 8.0, Cause.KILLED, ())
    story = play(
        (10, opening(past(live(A0), scheduled={due.unit: due}, exits={due.unit: (killed,)}))),
        *((11, ALL), (11.5, word(A0)), UP, (60,)),
        config=array(),
    )
    assert story.times(act.Launch, B1) == [40.0]
    (launched,) = (fields for fields in story.records("step_launched") if fields["group"] == 1)
    assert (launched["reason"], story.state.restarts) == ("restart: killed", 1)


def test_a_way_back_that_began_under_another_controller_is_told_from_its_beginning() -> None:
    tried = replace(live(B0, joined=None), noticed=8.0, away=3.0)
    story = play((10, opening(past(live(A0), tried))), (11, ALL), (11.5, word(A0), word(B0)), config=array())
    (back,) = story.records("group_joined")
    assert back["recovery_s"] == 8.5
    well = replace(live(B0), noticed=8.0, away=3.0)  # and has joined before that controller was lost
    story = play((10, opening(past(live(A0), well))), (11, jobs("81_0")), config=array())
    assert [exited["away_since"] for exited in story.records("step_exited")] == [11]


def test_what_was_lost_with_its_controller_was_last_at_work_when_that_one_wrote_its_last_line() -> None:
    steps = replace(live(A0), home="7.0"), replace(live(B0), home="7.0", joined=None, away=3.0)
    story = play((100, opening(past(*steps, home="7.0", time=9.0))))
    assert [exited["away_since"] for exited in story.records("step_exited")] == [9, 3]


def test_how_long_an_adopted_group_was_well_counts_from_its_first_step() -> None:
    story = adopted((20, killed(B0)))
    assert story.records("step_exited")[0]["healthy_s"] == 17.0


def test_who_may_hold_the_state_is_not_sent_away_before_it_has_said_so() -> None:
    ending = ev.JobsSeen((pilot("81_0", "n1", ends=100.0), pilot("81_1", "n2", ends=9e9)), asked=11.0)
    story = play((10, opening(past())), (11, ending), (11.2,), config=array())
    assert story.records("allocation_leaving") == []
    assert story.all(act.Attach) == [act.Attach(A0, PLACES[A0], "91.0"), act.Attach(B0, PLACES[B0], "92.0")]
    story.turn(11.5, [*word(A0), *word(B0)])  # now another one is known to hold it
    assert story.records("allocation_leaving") == []
    story.turn(12, [said.lighthouse_up(LIGHT1, NEW)])  # and now the Lighthouse can be told
    assert [record["allocation"] for record in story.records("allocation_leaving")] == ["81_0"]


@pytest.mark.parametrize("adopted_at", [12.0, None])
def test_a_job_near_its_end_is_not_left_before_its_group_can_be_told(adopted_at: float | None) -> None:
    ending = ev.JobsSeen((pilot("81_0", "n1", ends=100.0), pilot("81_1", "n2", ends=9e9)), asked=11.0)
    words, up = (11.5, word(B0)), (11.8, said.lighthouse_up(LIGHT1, NEW))
    story = play((10, opening(past())), (11, ending), (11.2,), words, up, config=array())
    assert story.records("allocation_leaving") == []  # although another group holds the state
    if adopted_at is not None:
        story.turn(adopted_at, word(A0))
        assert story.ids(msg.Stop) == [A0]
    else:
        spare = 100.0 - story.config.stop.grace_s - SPARE_S
        story.wait(spare - 0.1)
        assert story.records("allocation_leaving") == []
        story.wait(spare + 0.1)
        assert story.ids(act.Kill) == [A0]
    assert [record["allocation"] for record in story.records("allocation_leaving")] == ["81_0"]


def test_nodes_left_out_stay_so_until_no_job_of_the_run_has_had_them_for_a_while() -> None:
    story = play((10, opening(past(nodes=Nodes({"n9": Node(Out.LOST, 5.0)})))), (11, ALL), *ADOPTED[2:], config=array())
    assert story.all(act.Probe) == []  # it is in no job of the run: a step could not be started there
    story.turn(20, node_lost(B0, "n2"))
    story.wait(100)
    assert [ask.exclude for ask in story.all(act.RequestJobs)] == [("n2", "n9")]
    story.turn(101, [ev.JobsSeen((pilot("81_0", "n1"), pilot("81_3", "n4")), asked=100.0)])
    for now, events in ((102, ready(B1, "n4")), (103, [store(B1)]), (104, [stepped(B1, 50)])):
        story.turn(now, events)
    story.wait(5000)
    assert [record["node"] for record in story.records("node_restored")] == ["n9", "n2"]
    assert story.state.nodes.out() == frozenset()


@pytest.mark.parametrize(("preempted", "launched"), [(True, []), (False, [B1])])
def test_a_job_that_is_about_to_end_gets_no_group_until_it_was_requeued(preempted: bool, launched: list[Any]) -> None:
    seen = ev.JobsSeen((pilot("81_0", "n1"), replace(pilot("81_1", "n2"), preempted=preempted)), asked=10.5)
    story = play((10, opening(past(live(A0)))), (12, seen), (12.5, word(A0)), (13, *UP[1:]), (30,), config=array())
    assert story.ids(act.Launch)[1:] == launched
    assert [ask.name for ask in story.all(act.RequeueJob)] == ([] if launched else ["81_1"])
    assert len(story.records("allocation_leaving")) == len(story.all(act.RequeueJob))


def test_a_run_that_is_stopped_before_its_steps_are_adopted_ends_them_too() -> None:
    story = play(ADOPTED[0], (10.5, stop()), (11, ALL), (11.2, word(A0)), (30,), config=array())
    assert story.ids(act.Kill)[:2] == [A0, B0]
    assert [a.id for a in story.all(act.Attach)] == [A0, B0]
    assert story.all(msg.Stop) == []


def test_a_late_first_word_of_an_older_kind_changes_nothing() -> None:
    story = adopted((13, said.ready(A0, 0)), (14, word(A0, at=3)))
    assert story.state.groups[0].current.step == 41


def test_a_drain_of_a_node_whose_step_is_being_adopted_names_the_unit() -> None:
    story = play(*ADOPTED[:2], (11.2, ev.Asked("drain", ANN, "c1", node="n2")), config=array())
    (answer,) = story.all(records.CommandDone)
    assert answer.text.startswith("n2 gets nothing any more; group 1: moved as soon as")


# --- ends that no controller has seen ---------------------------------------------------------------------------------


@tried(200)
@given(st.data(), st.integers(0, 1), st.booleans())
def test_a_rank_that_has_left_alone_while_nobody_led_is_judged_as_by_a_controller_that_saw_it(
    data: st.DataObject, task: int, fails: bool
) -> None:
    """Of two ranks; the other one waits or has failed, and the lines of the two guards come in any order."""
    other = 1 - task
    waits = ev.Alive(A0, other, 12, "S", 12, Stage.SEEKING_QUORUM, 9.0)
    error = ev.TaskFailed(A0, Evidence(other, None, code=1, error="RuntimeError: no answer"))
    left = [*word(A0, task, at=12), said.task_done(A0, task, 12, term=fails)]
    rest = [*word(A0, other, at=12), error if fails else waits]
    turns = data.draw(st.permutations([left] * len(left) + [rest] * len(rest)))
    lines = {id(left): iter(left), id(rest): iter(rest)}
    merged = [next(lines[id(guard)]) for guard in turns]
    cut = data.draw(st.integers(0, len(merged)))
    two = past(live(A0, hosts=2), live(B0, hosts=2), step=12)
    wide = array(groups={"workers": 2}, stop={"grace_s": 1.0})
    heard = (11.5, word(B0, at=12), word(B0, 1, at=12)), (12, merged[:cut]), (12.1, merged[cut:])
    story = play((10, opening(two)), (11, ALL), *heard, config=wide)
    story.wait(14.5)
    assert story.ids(act.Kill) == [A0]
    story.turn(15, [ev.Ended(A0, code=1)])
    (end,) = story.records("step_exited")
    assert (end["cause"], end["rank"]) == ("left_on_sigterm" if fails else "left_early", task)


SEEMED = Exit(0, 5.0, Cause.OK, ("n1",), code=0, step=12)  # group 0 has ended, and others may train on


@pytest.mark.parametrize("known", [12, 38])
def test_a_group_that_had_seemed_to_finish_has_not_although_the_other_has_ended_while_nobody_led(known: int) -> None:
    before = past(live(B0), step=known, over={"group-0000": None}, exits={"group-0000": (SEEMED,)})
    end = [*word(B0, at=40), said.task_done(B0, 0, 40), ev.Ended(B0, code=0)]
    story = play((10, opening(before)), (11, ALL), (12, end), UP, config=array(groups={"min": 1}))
    story.wait(20)
    story.turn(20, [ev.Ended(step, code=137) for step in story.ids(act.Kill)])  # of group 0, if it was launched in time
    assert story.reason().startswith("1 of 2 groups finished; group 0 did not")
    ends = [(one["group"], one["attempt"], one["cause"]) for one in story.records("step_exited")]
    assert {(0, 0, "left_early"), (1, 0, "ok")} <= {*ends}


def test_of_loops_of_slightly_different_length_all_have_finished_whoever_leads() -> None:
    before = past(live(B0), step=12, over={"group-0000": None}, exits={"group-0000": (SEEMED,)})
    end = [*word(B0, at=14), said.task_done(B0, 0, 14), ev.Ended(B0, code=0)]
    story = play((10, opening(before)), (11, ALL), (12, end), (13,), config=array())
    assert story.reason() == "all groups finished"


@pytest.mark.parametrize("known", [12, 38])
def test_if_the_group_that_trained_on_was_killed_all_start_over(known: int) -> None:
    before = past(live(B0), step=known, over={"group-0000": None}, exits={"group-0000": (SEEMED,)})
    end = [*word(B0, at=40), *killed(B0, checkpoint=CHECKPOINT)]
    story = play((10, opening(before)), (11, ALL), (12, end), UP, config=array())
    story.turn(13, [ev.Ended(step, code=137, checkpoint=CHECKPOINT) for step in story.ids(act.Kill)])
    story.wait(30)
    assert story.records("group_given_up") == []
    assert len(story.records("full_restart")) == 1
    assert Phase.FAILED not in story.phases()
