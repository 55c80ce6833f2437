"""A controller is lost or makes way, and its successor goes on with its state and adopts the running steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import said
from fuzz import tried
from histories import (
    CHECKPOINT,
    RUNNING,
    STARTED,
    Moment,
    Story,
    array_config,
    array_running,
    config,
    flat,
    killed,
    merged,
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
from steps import A0, A1, ANN, B0, B1, C0, LIGHT0, LIGHT1, S0

from ftslurm.config.schema import Config, Fault
from ftslurm.controller.translate import read_attach
from ftslurm.core.jobs.supply import SPARE_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Job, Out, Phase, StepId
from ftslurm.protocol import messages as msg
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.stages import Stage

NEW = "http://new:2"
NODES = {A0: "n1", B0: "n2", C0: "n3", S0: "n3"}
JOBS = {"90_0": "n1", "90_1": "n2", "90_2": "n3", "91": "n4"}
UP = (22, said.lighthouse_up(LIGHT1, NEW))


def array(**sections: Any) -> Config:
    made = array_config(**{"lighthouse": {"kind": "ftslurm"}, **sections})
    made.orphan_after_s = 60.0
    return made


def one_job(**sections: Any) -> Config:
    """Return the settings of a run in one allocation."""
    made = config(**{"lighthouse": {"kind": "ftslurm"}, "cluster": {"kind": "slurm"}, **sections})
    made.orphan_after_s = 60.0
    return made


def jobs(*names: str, state: str = "RUNNING") -> ev.JobsSeen:
    return ev.JobsSeen(tuple(Job(n, id=f"id-{n}", state=state, nodes=(JOBS[n],)) for n in names), asked=20.5)


ALL = jobs("90_0", "90_1")


def word(of: StepId, task: int = 0, node: str = "", **fields: Any) -> list[ev.Event]:
    """Return the hello and the report of an adopted guard: all is done, but for the fields given."""
    known: dict[str, Any] = {"ready": True, "assigned": True, "begun": True, "lighthouse": "http://old:1", "floor": 3}
    known |= {"at": 41, "store": (of.unit, 29500) if task == 0 else None}
    return [said.hello(of, task, node or NODES[of], "9.0"), said.adopted(of, task, **(known | fields))]


def before(*more: Moment, settings: Config | None = None, steps: bool = False) -> Story:
    """Play two groups up to step 10 at 10 seconds (array mode; `steps`: in one job, at 20 seconds), and these."""
    if steps:
        return play(*RUNNING, *more, config=settings or one_job())
    return play(*merged(array_running(), more), config=settings or array())


def adopted(*more: Moment, story: Story | None = None) -> Story:
    """Have a controller on another machine take over at 20 seconds and adopt both groups; then play these."""
    story = (story or before()).taken_over(20, home="n9")
    for time, *events in ((21, ALL), (21.5, word(A0), word(B0)), UP, *more):
        story.wait(time)
        story.turn(time, events)
    return story


def test_what_runs_is_gone_to_and_nothing_but_the_lighthouse_is_launched() -> None:
    story = before().taken_over(20, home="n9")
    story.turn(21, [ALL])
    assert [(one.id, one.place.nodes) for one in story.all(act.Attach)] == [(A0, ("n1",)), (B0, ("n2",))]
    assert story.ids(act.Launch, since=20) == [LIGHT1]
    assert story.phases() == [Phase.STARTING] * 2


def test_before_slurm_has_told_of_the_jobs_nobody_is_gone_to_and_nothing_is_given_up() -> None:
    story = before().taken_over(20, home="n9")
    story.wait(40)
    assert story.all(act.Attach) == []
    assert (story.phases(), story.outcome()) == ([Phase.STARTING] * 2, None)


def test_once_heard_of_groups_are_what_they_were_and_learn_of_the_new_lighthouse() -> None:
    story = adopted((23, stepped(A0, 45, committed=30)))
    assert story.phases() == [Phase.RUNNING] * 2
    assert all(unit.joined for unit in story.state.groups)
    assert story.all(act.Assign, since=20) + story.all(msg.Begin, since=20) == []
    assert story.records("group_joined", since=20) == []
    assert [record["unit"] for record in story.records("step_ready", since=20)] == ["lighthouse"]
    moved = [act.Send(step, msg.LighthouseMoved(NEW)) for step in (A0, B0)]
    assert story.all(msg.LighthouseMoved) == moved
    told = [(a.group, a.attempt, a.store) for a in story.sent(msg.Member, since=20)]
    assert told == [(0, 0, "group-0000:29500/store"), (1, 0, "group-0001:29500/store")]
    assert (story.state.lineage.step, story.state.lineage.lost, story.outcome()) == (45, None, None)
    known = {"unit": "group-0000", "group": 0, "attempt": 0, "slurm_step": "9.0"}
    assert known.items() <= story.records("step_adopted")[0].items()


def test_who_has_joined_while_nobody_led_is_told_of() -> None:
    began = play(*array_running()[:-2], config=array())  # scripts have begun, and no step was heard of
    story = adopted(story=began)
    backs = story.records("group_joined")
    assert [(back["group"], back["step"]) for back in backs] == [(0, 41), (1, 41)]
    assert set(backs[0]["phases"].values()) == {None}  # no controller has seen them


def test_afterwards_a_group_that_fails_is_restarted_like_any_other() -> None:
    story = adopted((30, killed(B0)), (31,))
    assert story.ids(act.Launch, since=30) == [B1]
    assert story.phases() == [Phase.RUNNING, Phase.STARTING]


def wide(settings: Config) -> Story:
    """Play two groups of two workers up to step 12, in array mode."""
    both = [ready(step, NODES[step], NODES[step]) for step in (A0, B0)]
    up = (3, said.lighthouse_up(LIGHT0, "http://n1:29510"), *both)
    return play(
        *array_running()[:-4], up, *array_running()[-3:], (12, stepped(A0, 12), stepped(B0, 12)), config=settings
    )


def test_a_unit_waits_for_the_words_of_all_its_tasks() -> None:
    story = wide(array(groups={"workers": 2})).taken_over(20, home="n9")
    story.turn(21, [ALL])
    story.turn(22, [*word(A0), *word(B0), *word(B0, 1)])
    assert story.phases() == [Phase.STARTING, Phase.RUNNING]
    story.turn(23, [stepped(A0, 45, 30)])  # heard before all guards of its step: no second joining
    story.turn(24, word(A0, 1))
    assert story.records("group_joined", since=20) == []
    assert (story.phases(), story.state.lineage.step) == ([Phase.RUNNING] * 2, 45)


def test_who_had_not_begun_begins_and_who_had_not_been_assigned_is() -> None:
    story = play(*STARTED[:2], config=one_job()).taken_over(20)
    first = word(A0, begun=False, at=None)
    second = word(B0, begun=False, assigned=False, store=None, lighthouse=None, at=None)
    up = [*word(LIGHT0, node="n1"), said.lighthouse_up(LIGHT0, NEW)]
    story.turn(21.5, [*first, *second, *up])
    assert story.ids(act.Assign, since=20) == [B0]
    assert story.all(msg.Begin, since=20) == []  # at the first start all begin together
    story.turn(23, [said.store_up(B0, "n2", 29500)])
    assert story.ids(msg.Begin, since=20) == [A0, B0]


def test_a_group_that_heals_meanwhile_is_still_watched_as_one_that_comes_back() -> None:
    back = (12, killed(B0)), (13,), (14, ready(B1, "n2")), (15, store(B1))
    story = before(*back).taken_over(20, home="n9")
    story.turn(21, [ALL])
    story.turn(21.5, [*word(A0), *word(B1, node="n2", at=None, floor=39)])
    story.turn(22, list(UP[1:]))
    assert [unit.joined for unit in story.state.groups] == [True, False]
    story.turn(23, [stepped(B1, 39)])  # below the step that it had to heal to
    assert story.ids(act.Kill, since=20) == [B1]


# --- promises: whoever was answered is answeredrightly --------------------------------------------------------------


def asked(what: str, command: str = "c1", **fields: Any) -> ev.Asked:
    return ev.Asked(what, ANN, command, **fields)


@pytest.mark.parametrize("by", [ANN, 1000])
@pytest.mark.parametrize("steps", [True, False])
def test_a_stop_is_carried_out_by_whoever_leads(by: Any, steps: bool) -> None:
    story = before((20, ev.StopAsked("stopped by ann", by, command="c1")), steps=steps).taken_over(21)
    told = len(story.records("command"))
    story.turn(21.5, [ALL, ev.StopAsked("stopped by ann", by, command="c1")])  # its file was still in the inbox
    story.turn(22, [*word(A0), *word(B0)])
    assert story.ids(msg.Stop, since=21) == [A0, B0]  # said again: nobody knows whether they were told
    assert len(story.records("command")) == told
    story.turn(23, [ev.Ended(A0, 143), ev.Ended(B0, 143)])
    story.wait(60)
    assert (story.outcome(), story.ids(act.Launch, since=21)) == ("stopped", [])


@pytest.mark.parametrize("handed_over", [True, False])
def test_a_save_that_was_asked_for_is_answered_by_whoever_leads(handed_over: bool) -> None:
    story = before((12, said.can_save(A0)), (19, asked("save")))
    if handed_over:
        story.turn(19.5, [ev.Leaving("its job is about to end", 1)])
    story = adopted(story=story)
    assert {one.step for one in story.sent(msg.Save, since=20)} == {10}
    story.turn(25, [said.checkpointed(A0, 42, "/ckpt/step-00000042", 0.1)])
    (answer,) = story.records("command_done")
    assert (answer["command"], answer["step"], answer["path"]) == ("c1", 42, "/ckpt/step-00000042")


@pytest.mark.parametrize("heard", [True, False])
def test_a_checkpoint_is_told_once_whoever_hears_of_it(heard: bool) -> None:
    """Its guard repeats it to each controller: the script does not save the same step again."""
    saved = said.checkpointed(A0, 10, "/ckpt/step-00000010", 0.1)
    asks = [(12, said.can_save(A0)), (18, asked("save")), *([(19, saved)] if heard else [])]
    story = before(*asks).taken_over(20, home="n9")
    story.turn(21, [ALL])
    story.turn(21.5, [*word(A0, at=10), saved, *word(B0, at=10)])
    story.turn(22, list(UP[1:]))
    assert [record["step"] for record in story.records("checkpoint_saved")] == [10]
    assert [record["step"] for record in story.records("command_done")] == [10]


def test_the_save_before_the_time_limit_is_made_by_whoever_leads() -> None:
    limit = ev.JobEnds("its time limit is near", "slurm", Cause.TIME_LIMIT, 60.0)
    story = before((12, said.can_save(A0)), (20, limit), steps=True).taken_over(21)
    story.turn(22, [*word(A0), *word(B0)])
    assert story.ids(msg.Save, since=21) == [A0, B0]
    story.turn(25, [said.checkpointed(A0, 42, CHECKPOINT.path, 0.1)])
    assert story.ids(msg.Stop, since=25) == [A0, B0]
    ends = [ev.Ended(step, 143, checkpoint=replace(CHECKPOINT, step=42)) for step in (A0, B0)]
    story.turn(26, ends)
    story.turn(27, [ev.Ended(LIGHT0, 143)])
    assert [record["outcome"] for record in story.records("run_requeued")] == ["requeued"]


def test_checkpoints_that_are_wrong_are_marked_by_whoever_leads() -> None:
    story = before()
    story.state = replace(story.state, errands=story.state.errands.set(act.DistrustCheckpoints(1, 0, 35), 99.0))
    story.taken_over(20, home="n9")
    assert story.all(act.DistrustCheckpoints, since=20) == [act.DistrustCheckpoints(1, 0, 35)]


def test_an_accepted_restart_is_done_by_the_controller_that_takes_over() -> None:
    for ended in (False, True):
        story = before((20, asked("restart", group=1)), steps=True).taken_over(21)
        story.turn(22, [*word(A0), *([] if ended else word(B0))])
        story.turn(23, [said.task_done(B0, 0), ev.Ended(B0, code=0)])
        story.wait(25)
        assert story.records("step_exited")[0]["cause"] == "requested"
        assert story.ids(act.Launch, since=21) == [B1]


def test_a_command_is_taken_once() -> None:
    story = before((12, asked("drain", node="n2")))
    answers = len(story.records("command_done")) + len(story.records("command_refused"))
    story.finds_files_again = True
    story = adopted((23, asked("drain", node="n2")), story=story)
    assert len(story.records("command_done")) + len(story.records("command_refused")) == answers == 1


@pytest.mark.parametrize("fault", ["kill", "cancel", "stop", "stacks"])
def test_guards_are_asked_again_for_what_they_have_not_answered_and_for_nothing_else(fault: str) -> None:
    wanted = asked("stacks", group=1) if fault == "stacks" else asked("inject", group=1, fault=fault)
    request: dict[str, act.Action] = {
        "stacks": act.Send(B0, msg.Dump("c1", 0)),
        "cancel": act.Cancel(B0),
    }
    again = request.get(fault, act.Send(B0, msg.Inject(fault, 0)))
    story = adopted(story=before((19, wanted)))
    assert [action for time, action in story.done if time >= 20 and action == again] == [again]
    assert len(story.records("fault_injected")) == (fault != "stacks")
    answer = said.stacks_taken(B0, 0, "c1", 700) if fault == "stacks" else said.injected(B0, 0, fault)
    story = adopted(story=before((19, wanted), (19.1, answer)))
    assert again not in [action for time, action in story.done if time >= 20]


@pytest.mark.parametrize("fault", ["kill", "cancel"])
def test_a_drill_that_is_asked_for_during_an_adoption_is_done_after_it(fault: str) -> None:
    story = before().taken_over(20, home="n9")
    story.turn(21, [ALL, asked("inject", group=1, fault=fault)])
    drill = act.Cancel(B0) if fault == "cancel" else act.Send(B0, msg.Inject(fault, 0))
    assert drill not in [action for _, action in story.done]
    story.turn(21.5, [*word(A0), *word(B0)])
    assert [action for _, action in story.done if action == drill] == [drill]
    assert (len(story.records("fault_injected")), story.records("fault_refused")) == (1, [])


def test_drills_are_done_once_each_and_none_is_left_out() -> None:
    settings = array()
    settings.faults.plan = [Fault(group=0, at=200.0), Fault(group=1, at=8.0), Fault(group=0, at=50.0)]
    story = adopted((23, stepped(A0, 60, 40)), story=before(settings=settings))
    done = [(record["group"], record["step"]) for record in story.records("fault_injected")]
    assert done == [(1, 10), (0, 60)]
    assert story.state.injected == {1, 2}


# --- a launch that was decided and not made ---------------------------------------------------------------------------


def test_a_launch_that_was_never_begun_is_made_again_and_is_no_failure() -> None:
    story = before((15, killed(B0)), (17,)).taken_over(20, home="n9", unmade=frozenset({B1}))
    assert story.ids(act.Launch, since=20)[:1] == [B1]
    for time, *events in ((21, ALL, word(A0)), UP, (23, ready(B1, "n2")), (24, store(B1)), (25, stepped(B1, 45))):
        story.turn(time, [event for one in events for event in (one if isinstance(one, list) else [one])])
    assert story.phases() == [Phase.RUNNING] * 2
    assert [record["unit"] for record in story.records("step_exited", since=20)] == ["lighthouse"]


def test_one_that_had_begun_is_not_made_again() -> None:
    story = before((15, killed(B0)), (17,), (18, said.hello(B1, 0, "n2"))).taken_over(20, home="n9")
    assert story.ids(act.Launch, since=20) == [LIGHT1]


# --- steps that cannot be adopted ------------------------------------------------------------------------------------


def test_a_step_that_does_not_answer_is_a_failed_one_and_the_others_go_on() -> None:
    sign = read_attach(Evidence(0, "n2", code=ExitCode.NO_GUARD))
    story = before().taken_over(20, home="n9")
    gone = (22.9, ev.TaskFailed(B0, cast(Evidence, sign)), ev.Ended(B0, 76))
    for time, *events in ((21, ALL), (21.5, *word(A0)), UP, gone, (24, ALL)):
        story.wait(time)
        story.turn(time, events)
    assert story.ids(act.Launch, since=22.9) == [B1]
    ended = story.records("step_exited")[-1]
    assert (ended["cause"], ended["attempt"]) == ("unknown", 0)
    assert "has not outlived its controller" in ended["error"]


def test_codes_of_the_way_to_a_step_are_no_codes_of_a_script() -> None:
    assert read_attach(Evidence(0, "n1", code=3)) == Evidence(0, "n1", code=3)
    assert read_attach(Evidence(0, "n1", code=ExitCode.END_REPORTED)) is None  # its end is in the journal
    assert cast(Evidence, read_attach(Evidence(0, "n1", code=ExitCode.NO_GUARD))).cause is Cause.UNKNOWN
    assert cast(Evidence, read_attach(Evidence(0, "n1", code=ExitCode.DETACHED))).signal == 9


def test_while_srun_cannot_start_it_is_tried_again_for_as_long_as_a_step_waits() -> None:
    fails = [(21.5 + 3 * n, ev.Ended(B0, 78, error="slurm_load_jobs error", launcher_failed=True)) for n in range(3)]
    again = [(22 + 3 * n, ALL) for n in range(4)]
    moments = merged([(21, ALL), (21.2, word(A0))], fails, again)
    for last in ((32, word(B0)), (81, ev.Ended(B0, 78, error="no such step", launcher_failed=True))):
        story = before().taken_over(20, home="n9")
        for time, *events in (*moments, last):
            story.wait(time)
            story.turn(time, events)
        ended = [record for record in story.records("step_exited") if record["group"] == 1]
        if last[0] == 32:
            assert len([a for a in story.all(act.Attach) if a.id == B0]) == 4
            assert (story.phases(), ended) == ([Phase.RUNNING] * 2, [])
        else:
            assert [(one["cause"], one["error"], one["launched"]) for one in ended] == [
                ("unknown", "no such step", True)
            ]


def test_a_job_that_is_gone_has_taken_its_step_along() -> None:
    elsewhere = ev.JobsSeen((pilot("90_0", "n1"), pilot("90_1", "n9")), asked=21.0)  # requeued
    for seen, cause in (
        (jobs("90_0"), "unknown"),
        (jobs("90_1", state="PENDING"), "preempted"),
        (elsewhere, "preempted"),
    ):
        story = before().taken_over(20, home="n9")
        story.turn(21, [seen])
        ended = [record for record in story.records("step_exited") if record["group"] == 1]
        assert [(one["cause"], one["step"]) for one in ended] == [(cause, 10)]
        assert B0 not in story.ids(act.Attach)


@pytest.mark.parametrize("state", ["down*", "mixed*", "idle+not_responding"])
def test_a_step_whose_node_died_while_nobody_led_is_started_elsewhere(state: str) -> None:
    sign = cast(Evidence, read_attach(Evidence(0, "n2", code=ExitCode.NO_GUARD)))
    story = before(steps=True).taken_over(21)
    story.turn(22, [*word(A0), *word(LIGHT0, node="n1"), said.lighthouse_up(LIGHT0, NEW)])
    story.turn(23, [ev.TaskFailed(B0, sign), ev.Ended(B0, 76)])
    assert story.ids(act.Launch, since=21) == []  # Slurm is asked first
    story.turn(23.2, read_node_fates(f"NodeName=n2 State={state.upper()}"))
    assert [launch.place.nodes for launch in story.all(act.Launch) if launch.id == B1] == [("n3",)]


@pytest.mark.parametrize("saved", [None, CHECKPOINT])
def test_if_none_is_left_the_state_is_lost(saved: Any) -> None:
    sign = cast(Evidence, read_attach(Evidence(0, "n2", code=ExitCode.NO_GUARD)))
    story = before().taken_over(20, home="n9")
    gone = [event for s in (A0, B0) for event in (ev.TaskFailed(s, sign), ev.Ended(s, 76, checkpoint=saved))]
    for time, *events in ((21, ALL), UP, (22.9, *gone), (24, ALL), (30,)):
        story.wait(time)
        story.turn(time, events)
    if saved is None:
        assert "no group is left that holds the state of step 10" in story.reason()
    else:
        assert len(story.records("full_restart")) == 1
        assert sorted(story.ids(act.Launch, since=23), key=str) == [A1, B1]


@pytest.mark.parametrize("saved", [None, CHECKPOINT])
def test_what_ran_in_the_controllers_own_job_has_died_with_it(saved: Any) -> None:
    story = before(steps=True).taken_over(1000, home="requeued", checkpoint=saved)
    assert story.all(act.Attach) == []
    ends = {e["unit"]: (e["cause"], e["node"], e["step"], e["away_since"]) for e in story.records("step_exited")}
    assert ends == {
        "lighthouse": ("cancelled", None, None, 20),
        "group-0000": ("node_lost", "n1", 10, 20),
        "group-0001": ("preempted", None, 10, 20),  # it was last at work when the journal was written last
    }
    assert [len(unit.exits) for unit in story.state.groups] == [1, 1]
    if saved is None:
        assert "the job was requeued, and with all groups the state of step 10" in story.reason()
    else:
        (restart,) = story.records("full_restart")
        assert (restart["step"], restart["checkpoint_step"]) == (10, 5)
        assert story.records("restart_scheduled") == []
        story.wait(1010)
        assert story.ids(act.Launch, since=1000) == [LIGHT1, A1, B1]


def test_all_that_runs_in_a_crashed_controllers_job_is_adopted_with_the_lighthouse() -> None:
    story = before(steps=True).taken_over(21)
    up = [*word(LIGHT0, node="n1"), said.lighthouse_up(LIGHT0, "http://n1:29510")]
    story.turn(22, [*up, *word(A0), *word(B0)])
    story.turn(23, [stepped(A0, 45, committed=30)])
    assert {a.id for a in story.all(act.Attach)} == {LIGHT0, A0, B0}
    assert story.all(act.Launch, since=21) == []
    assert story.phases() == [Phase.RUNNING] * 2
    assert story.state.lighthouse.phase is Phase.RUNNING
    told = {(a.id, a.message.group, a.message.attempt) for a in story.all(msg.Member, since=21)}
    assert told == {(LIGHT0, 0, 0), (LIGHT0, 1, 0)}
    assert story.records("step_ready", since=21) == []
    gone = before(steps=True).taken_over(21)
    gone.turn(22, [*word(A0), *word(B0), ev.Ended(LIGHT0, code=76)])
    assert gone.ids(act.Launch, since=21) == [LIGHT1]  # at once: it was no dud


@pytest.mark.parametrize(("then", "at"), [((21.5, *word(A0), *word(B0)), 21.5), ((25.1,), 25.1)])
@pytest.mark.parametrize("home", ["n9", ""])
def test_a_lighthouse_whose_controller_has_left_serves_until_the_groups_can_be_told_of_the_next(
    then: Moment, at: float, home: str
) -> None:
    story = before((19, ev.Leaving("its job is about to end", 1))).taken_over(20, home=home)
    assert [record["leader"] for record in story.records("controller_left")] == [1]
    story.turn(21, [ALL])
    assert story.ids(act.Launch, since=20) == []
    story.turn(then[0], list(then[1:]))
    assert story.ids(act.Launch, since=at) == [LIGHT1]
    assert [e["unit"] for e in story.records("step_exited")] == ["lighthouse"]


# --- other state that the successor keeps ----------------------------------------------------------------------------


def test_who_had_finished_is_not_launched_again() -> None:
    story = before((19, said.task_done(B0, 0, at=10), ev.Ended(B0, 0))).taken_over(20, home="n9")
    story.turn(20.5, [ALL])
    story.turn(20.7, [*word(A0, at=10)])
    story.turn(20.8, list(UP[1:]))
    story.turn(20.9, [said.task_done(A0, 0, at=10), ev.Ended(A0, 0)])
    assert story.phases() == [Phase.SUCCEEDED] * 2
    assert story.ids(act.Launch, since=20) == [LIGHT1]
    assert story.outcome() == "succeeded"


def test_why_a_group_was_given_up_is_told_by_the_next_controller_too() -> None:
    both = array(groups={"min": 2}, restart={"max_per_group": 0})
    story = before((19, killed(B0)), settings=both)
    reason = story.reason()
    assert "group 1: " in reason
    assert story.taken_over(20, home="n9").reason() == reason


def test_a_full_restart_under_way_goes_on() -> None:
    down = (14, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    again = (17, ready(A1, "n1"), ready(B1, "n2")), (18, store(A1))
    story = before(down, (16,), *again).taken_over(20, home="n9")
    words = [one for step, node in ((A1, "n1"), (B1, "n2")) for one in word(step, node=node, begun=False, at=None)]
    for time, *events in ((21, ALL), (21.5, *words), UP):
        story.turn(time, events)
    assert (story.state.lineage.resuming, story.state.lineage.resume_step) == (True, 5)
    assert {(b.heals, b.floor) for b in story.sent(msg.Begin, since=20)} == {(False, 5)}
    assert len(story.records("full_restart")) == 1


def test_a_run_that_was_scaled_has_as_many_groups_and_who_is_told_to_leave_leaves() -> None:
    grown = before((19, asked("scale", groups=3)), settings=array(groups={"max": 3})).taken_over(20, home="n9")
    assert [unit.name for unit in grown.state.groups] == ["group-0000", "group-0001", "group-0002"]
    story = before((19, asked("scale", groups=1)), settings=array(groups={"min": 1}))
    story = adopted(story=story)
    assert set(story.ids(act.Attach)) == {A0, B0}
    assert story.ids(msg.Stop) == [B0, B0]  # said again: nobody knows whether the first one has arrived
    story.turn(23, [ev.Ended(B0, code=0)])
    ends = [(r["unit"], r["cause"]) for r in story.records("step_exited") if r["group"] is not None]
    assert ends == [(B0.unit, "cancelled")]
    assert (len(story.state.groups), dict(story.state.parked)) == (1, {"group-0001": 0})
    story.wait(500)
    assert story.outcome() is None


def test_a_restart_that_was_due_is_not_launched_sooner_by_another_controller() -> None:
    settings = array(restart={"backoff_s": 30.0})
    story = before((15, killed(B0)), (17, killed(B1)), settings=settings)
    due = story.records("restart_scheduled")[-1]["due"]
    assert due > 22
    story = story.taken_over(20, home="n9")
    for time, *events in ((21, ALL), (21.5, *word(A0)), UP, (due + 1,)):
        story.wait(time)
        story.turn(time, events)
    assert story.times(act.Launch, StepId(B0.unit, 2)) == [due]
    (launched,) = (fields for fields in story.records("step_launched", since=20) if fields["group"] == 1)
    assert launched["reason"].startswith("restart: killed")
    assert story.state.restarts == 2


def test_the_clock_of_another_node_delays_no_restart_for_long() -> None:
    story = before((15, killed(B0)))
    story.state = histories_with_due(story, B0.unit, 1e9)
    story.taken_over(20, home="n9")
    assert story.unit(B0).due < 20 + 400


def histories_with_due(story: Story, name: str, due: float) -> Any:
    unit = replace(story.state.table.by_name[name], phase=Phase.PENDING, due=due)
    return replace(story.state, table=story.state.table.put(unit))


def test_how_long_an_adopted_group_was_well_counts_from_its_first_step() -> None:
    story = adopted((30, killed(B0)))
    ended = next(record for record in story.records("step_exited") if record["group"] == 1)
    assert ended["healthy_s"] == 25.0


def test_who_may_hold_the_state_is_not_sent_away_before_it_has_said_so() -> None:
    ending = ev.JobsSeen((pilot("90_0", "n1", ends=100.0), pilot("90_1", "n2", ends=9e9)), asked=20.5)
    story = before().taken_over(20, home="n9")
    story.turn(21, [ending])
    story.turn(21.2, [])
    assert story.records("allocation_leaving") == []
    assert story.ids(act.Attach) == [A0, B0]
    story.turn(21.5, [*word(A0), *word(B0)])  # now another one is known to hold it
    assert story.records("allocation_leaving") == []
    story.turn(22, [said.lighthouse_up(LIGHT1, NEW)])  # and now the Lighthouse can be told
    assert [record["allocation"] for record in story.records("allocation_leaving")] == ["90_0"]


@pytest.mark.parametrize("adopted_at", [22.0, None])
def test_a_job_near_its_end_is_not_left_before_its_group_can_be_told(adopted_at: float | None) -> None:
    ending = ev.JobsSeen((pilot("90_0", "n1", ends=100.0), pilot("90_1", "n2", ends=9e9)), asked=20.5)
    story = before().taken_over(20, home="n9")
    for time, *events in ((21, ending), (21.2,), (21.5, *word(B0)), (21.8, said.lighthouse_up(LIGHT1, NEW))):
        story.turn(time, events)
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
    assert [record["allocation"] for record in story.records("allocation_leaving")] == ["90_0"]


def test_nodes_left_out_stay_so() -> None:
    story = before((19, node_lost(B0, "n2"))).taken_over(20, home="n9")
    story.turn(21, [jobs("90_0")])
    assert story.state.nodes.out(Out.LOST) == {"n2"}
    assert [ask.exclude for ask in story.all(act.RequestJobs)][-1] == ("n2",)


@pytest.mark.parametrize("preempted", [True, False])
def test_a_job_that_is_about_to_end_gets_no_group_until_it_was_requeued(preempted: bool) -> None:
    seen = ev.JobsSeen((pilot("90_0", "n1"), replace(pilot("90_1", "n2"), preempted=preempted)), asked=20.5)
    story = before((19.9, killed(B0))).taken_over(20, home="n9")
    for time, *events in ((20.5, seen), (21, *word(A0)), (22, *UP[1:]), (40,)):
        story.wait(time)
        story.turn(time, events)
    assert story.ids(act.Launch, since=20)[1:] == ([] if preempted else [B1])
    assert [ask.name for ask in story.all(act.RequeueJob)] == (["90_1"] if preempted else [])


def test_workers_that_became_ready_while_no_controller_led_are_journaled_once() -> None:
    story = before((15, killed(B0)), (17,), (18, said.hello(B1, 0, "n2"))).taken_over(20, home="n9")
    for time, *events in ((21, ALL), (21.2, *word(A0), *word(B1, node="n2", at=None)), UP, (23, said.ready(B1, 0))):
        story.wait(time)
        story.turn(time, events)
    assert [(one["group"], one["attempt"]) for one in story.records("step_ready", since=19)[:1]] == [(1, 1)]
    assert [one["group"] for one in story.records("step_ready")].count(1) == 2


def test_a_run_that_is_stopped_before_its_steps_are_adopted_ends_them_too() -> None:
    story = before().taken_over(20, home="n9")
    for time, *events in ((20.5, stop()), (21, ALL), (21.2, *word(A0)), (40,)):
        story.wait(time)
        story.turn(time, events)
    assert story.ids(act.Kill)[:2] == [A0, B0]
    assert [a.id for a in story.all(act.Attach)] == [A0, B0]


def test_a_late_first_word_of_an_older_kind_changes_nothing() -> None:
    story = adopted((23, said.ready(A0, 0)), (24, *word(A0, at=3)))
    assert story.state.groups[0].current.step == 41


def test_a_drain_of_a_node_whose_step_is_being_adopted_names_the_unit() -> None:
    story = before().taken_over(20, home="n9")
    story.turn(21, [ALL])
    story.turn(21.2, [asked("drain", node="n2")])
    answer = story.all(records.CommandDone)[-1]
    assert answer.text.startswith("n2 gets nothing any more; group 1: moved as soon as")


@pytest.mark.parametrize("at", [20.0, 20.5, 21.2])
def test_save_is_answered_once_the_groups_are_connected_to(at: float) -> None:
    story = before((11, said.can_save(A0), said.can_save(B0))).taken_over(20, home="n9")
    events: dict[float, list[ev.Event]] = {at: [asked("save")], 21.0: [ALL], 22.0: [*word(A0), *word(B0)]}
    for time in sorted(events):
        story.wait(time)
        story.turn(time, events[time])
    assert story.ids(msg.Save) == [A0, B0]
    assert story.records("command_refused") == story.records("command_done") == []
    (step, *_) = {message.step for message in story.sent(msg.Save)}
    story.turn(24, [said.checkpointed(A0, step, "/ckpt/x", 0.5)])
    (done,) = story.records("command_done")
    assert (done["what"], done["step"], done["path"]) == ("save", step, "/ckpt/x")


def test_a_standby_goes_on_waiting_and_one_that_has_taken_over_is_the_group() -> None:
    settings, warm = one_job(standby={"count": 1}), (4, ready(S0, "n3"))
    report = word(S0, assigned=False, begun=False, store=None, lighthouse=None, at=None)
    up = [*word(LIGHT0, node="n1"), said.lighthouse_up(LIGHT0, NEW)]
    story = play(*merged(RUNNING, (warm,)), config=settings).taken_over(21)
    story.turn(22, [*word(A0), *word(B0), *report, *up])
    story.turn(23, killed(B0))
    story.turn(23.1, [ev.NodeFate("n2", False)])
    (assigned,) = story.all(act.Assign, since=21)
    assert (assigned.id, assigned.group, assigned.attempt) == (S0, 1, 1)
    story.taken_over(24)  # this one knows it as the group
    assert (story.state.groups[1].id, story.state.groups[1].attempt) == (S0, 1)
    silent = word(S0, begun=False, store=None, at=None)
    story.turn(25, [*word(A0), *silent, *up])
    story.wait(70)
    assert story.times(act.Kill, S0)[0] == 55.0  # no store within STORE_WITHIN_S


# --- ends that no controller has seen ---------------------------------------------------------------------------------


@tried(200)
@given(st.data(), st.integers(0, 1), st.booleans())
def test_a_rank_that_has_left_alone_while_nobody_led_is_judged_as_by_a_controller_that_saw_it(
    data: st.DataObject, task: int, fails: bool
) -> None:
    """Of two ranks; the other one waits or has failed, and the lines of the two guards come in any order."""
    other = 1 - task
    waits = ev.Alive(A0, other, 22, "S", 12, Stage.SEEKING_QUORUM, 9.0)
    error = ev.TaskFailed(A0, Evidence(other, None, code=1, error="RuntimeError: no answer"))
    left = [*word(A0, task, at=12), said.task_done(A0, task, 12, term=fails)]
    rest = [*word(A0, other, at=12), error if fails else waits]
    turns = data.draw(st.permutations([left] * len(left) + [rest] * len(rest)))
    lines = {id(left): iter(left), id(rest): iter(rest)}
    mixed = [next(lines[id(guard)]) for guard in turns]
    cut = data.draw(st.integers(0, len(mixed)))
    story = wide(array(groups={"workers": 2}, stop={"grace_s": 1.0})).taken_over(20, home="n9")
    story.turn(21, [ALL])
    story.turn(21.5, [*word(B0, at=12), *word(B0, 1, at=12)])
    story.turn(22, mixed[:cut])
    story.turn(22.1, mixed[cut:])
    story.wait(24.5)
    assert story.ids(act.Kill) == [A0]
    story.turn(25, [ev.Ended(A0, code=1)])
    (end,) = (one for one in story.records("step_exited") if one["group"] is not None)
    assert (end["cause"], end["rank"]) == ("left_on_sigterm" if fails else "left_early", task)


def seemed(known: int, **sections: Any) -> Story:
    """Play a run whose group 0 has seemed to finish at step 12, while the other one was known at a step."""
    at_12 = (12, stepped(A0, 12), stepped(B0, 12))
    end = (19, said.task_done(A0, 0, 12), ev.Ended(A0, code=0))
    story = before(at_12, end, (19.5, stepped(B0, known)), settings=array(**sections))
    story.taken_over(20, home="n9")
    story.turn(21, [ALL])
    return story


@pytest.mark.parametrize("known", [12, 38])
def test_a_group_that_had_seemed_to_finish_has_not_although_the_other_has_ended_while_nobody_led(known: int) -> None:
    story = seemed(known, groups={"min": 1})
    story.turn(22, [*word(B0, at=40), said.task_done(B0, 0, 40), ev.Ended(B0, code=0)])
    story.turn(22.5, list(UP[1:]))
    story.wait(30)
    story.turn(30, [ev.Ended(step, code=137) for step in story.ids(act.Kill)])  # of group 0, if it was launched in time
    assert story.reason().startswith("1 of 2 groups finished; group 0 did not")
    ends = [(one["group"], one["attempt"], one["cause"]) for one in story.records("step_exited")]
    assert {(0, 0, "left_early"), (1, 0, "ok")} <= {*ends}


def test_of_loops_of_slightly_different_length_all_have_finished_whoever_leads() -> None:
    story = seemed(12)
    story.turn(22, [*word(B0, at=14), said.task_done(B0, 0, 14), ev.Ended(B0, code=0)])
    story.turn(23, [])
    assert story.reason() == "all groups finished"


@pytest.mark.parametrize("known", [12, 38])
def test_if_the_group_that_trained_on_was_killed_all_start_over(known: int) -> None:
    story = seemed(known)
    story.turn(22, [*word(B0, at=40), *killed(B0, checkpoint=CHECKPOINT)])
    story.turn(22.5, list(UP[1:]))
    story.turn(23, [ev.Ended(step, code=137, checkpoint=CHECKPOINT) for step in story.ids(act.Kill)])
    story.wait(40)
    assert story.records("group_given_up") == []
    assert len(story.records("full_restart")) == 1
    assert Phase.FAILED not in story.phases()


def test_a_drained_node_that_slurm_has_taken_away_is_drained_in_the_next_job() -> None:
    story = before(steps=True)
    story.turn(20.5, [asked("drain", node="n3")])
    story.turn(20.7, [ev.NodesLeft(("n1", "n2"))])
    story.taken_over(1000, home="requeued", nodes=3, checkpoint=CHECKPOINT)
    story.wait(1010)
    assert (story.state.nodes.drained, story.state.nodes.out()) == ({"n3"}, frozenset())
    assert not any("n3" in launch.place.nodes for launch in story.all(act.Launch, since=1000))


def test_the_time_without_a_group_whose_job_was_lost_counts_from_its_last_step() -> None:
    story = before(steps=True).taken_over(100, home="requeued", nodes=3, checkpoint=CHECKPOINT)
    story.wait(110)
    light, *groups = story.ids(act.Launch, since=100)
    assert light == LIGHT1
    for time, *events in (
        (111, said.lighthouse_up(LIGHT1, NEW)),
        (112, *(ready(step, NODES[replace(step, attempt=0)]) for step in groups)),
        (113, *(store(step) for step in groups)),
        (120, *(stepped(step, 11) for step in groups)),
    ):
        story.turn(time, flat(events))
    assert [joined["recovery_s"] for joined in story.records("group_joined", since=100)] == [100, 100]


@pytest.mark.parametrize("trains_on", [True, False])
def test_after_a_group_has_finished_none_is_launched_until_another_is_known_to_train(trains_on: bool) -> None:
    at_40 = (19, stepped(A0, 40), stepped(B0, 40))
    story = before((12, asked("scale", groups=3)), at_40, settings=array(groups={"count": 2, "max": 3}))
    story.taken_over(20, home="n9")
    story.turn(21, [ALL, *UP[1:], *word(A0, at=40)])
    story.turn(22, [said.task_done(A0, 0, 40), ev.Ended(A0, code=0)])  # its job is free
    story.wait(30)
    assert story.ids(act.Launch, since=21) == []
    story.turn(30, word(B0, at=40) if trains_on else [said.hello(B0, 0, "n2", "9.0"), ev.Ended(B0, code=0)])
    story.wait(60)
    assert story.ids(act.Launch, since=21) == ([C0] if trains_on else [])


@pytest.mark.parametrize("home", [None, "n9"])
def test_a_controller_in_another_job_leads_for_that_job_also_on_the_same_host(home: str | None) -> None:
    """The lead moved from job to job for ever: each took the ended job of the first controller for its own."""
    story = before(settings=array(cluster={"controller": "job"}))
    own = Job("91", pool=records.CONTROLLER_POOL, id="91", state="RUNNING", nodes=("n4",))
    story.taken_over(20, home=home, job="91")
    story.turn(21, [ev.JobsSeen((*ALL.jobs, own), asked=20.5), *word(A0), *word(B0)])
    assert (story.state.allocation.name, story.state.former) == ("91", "7")
    for time in range(30, 200, 10):
        story.wait(time)
        story.turn(time, [ev.JobsSeen((*ALL.jobs, own), asked=time - 0.5)])
    assert story.state.hands_over is None
