"""Warm standbys, as histories: a standby takes over, also with faults meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import said
from histories import (
    CHECKPOINT,
    Moment,
    config,
    finished,
    granted,
    is_a,
    killed,
    node_lost,
    play,
    raised,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, A1, B0, B1, B2, LIGHT0, LIGHT1, S0, S1, URL

from ftslurm.config.schema import Config
from ftslurm.core.groups.standby import REFILL_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, Place, StepId
from ftslurm.protocol import messages as msg
from ftslurm.protocol.messages import Rank
from ftslurm.protocol.records import JournalRecord

OTHER = StepId("standby-001", 0)


def warm(count: int = 1, **sections: dict[str, Any]) -> Config:
    return config(standby={"count": count}, **sections)


def storing(step: StepId) -> ev.Event:
    return said.store_up(step, "n3", 29500)


STARTED: tuple[Moment, ...] = (
    (0, granted(3)),
    (1, said.lighthouse_up(LIGHT0, URL)),
    (2, ready(A0), ready(B0)),
    (3, store(A0), store(B0)),
    (5, stepped(A0, 1), stepped(B0, 1), ready(S0, "n3")),
    (20, stepped(A0, 10), stepped(B0, 10)),
)


def test_a_standby_is_launched_like_a_group_and_waits() -> None:
    story = play(*STARTED, config=warm())
    assert story.all(act.Launch)[-1] == act.Launch(S0, None, Place(("n3",)))
    assert story.records("step_ready")[-1]["unit"] == "standby-000"
    assert story.unit(S0).phase is Phase.RUNNING
    assert [launched["standby"] for launched in story.records("step_launched")] == [None] * 4


def test_it_becomes_the_next_attempt_in_the_moment_in_which_the_failed_one_is_gone() -> None:
    story = play(
        *STARTED, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))), (30.3, ev.Ended(B0, 137)), config=warm()
    )
    assert story.ids(act.Launch, since=30) == []
    assert story.all(act.Assign, since=30) == [act.Assign(S0, 1, (Rank(0, "n3", 0, 0),), URL, attempt=1)]
    (launched,) = story.records("step_launched", since=30)
    known = {"unit": "group-0001", "group": 1, "attempt": 1, "standby": "standby-000/0", "nodes": ["n3"], "slot": 0}
    known |= {"down_s": 0.3, "hosts": ["n3"]}
    assert known.items() <= launched.items()
    assert story.state.groups[1].id == S0


def test_what_its_step_says_from_then_on_is_the_groups() -> None:
    words = (
        (30, killed(B0)),
        (30.2, storing(S0)),
        (33, stepped(S0, 40)),
        (50, [ev.TaskFailed(S0, Evidence(0, None, signal=9)), ev.Ended(S0, 137)]),
    )
    story = play(*STARTED, *words, config=warm(lighthouse={"kind": "ftslurm"}))
    assert story.ids(msg.Begin, since=30) == [S0]
    (joined,) = story.records("group_joined", since=30)
    assert (joined["group"], joined["attempt"]) == (1, 1)
    exited = story.records("step_exited")[-1]
    assert (exited["unit"], exited["attempt"], exited["cause"], exited["node"]) == ("group-0001", 1, "killed", "n3")


def test_the_phases_of_a_way_back_through_a_standby() -> None:
    story = play(
        *STARTED,
        (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))),
        (30.3, ev.Ended(B0, 137)),
        (30.4, storing(S0)),
        (30.6, stepped(S0, 40)),
        config=warm(lighthouse={"kind": "ftslurm"}),
    )
    (joined,) = story.records("group_joined", since=30)
    assert joined["recovery_s"] == 0.6
    phases = {
        "earlier": None,
        "detect": None,
        "end": 0.3,
        "wait": 0,
        "start": 0,
        "import": 0,
        "assign": 0.1,
        "join": None,
        "commit": None,
    }
    assert joined["phases"] == phases


def test_its_ranks_are_those_of_its_own_tasks_however_slurm_dealt_them_out() -> None:
    wide = warm(groups={"nodes": 2, "workers": 2})
    up = [(2, ready(A0, "n1", "n1", "n2", "n2"), ready(B0, "n3", "n3", "n4", "n4"), ready(S0, "n5", "n6", "n5", "n6"))]
    started = [(0, granted(6)), (1, said.lighthouse_up(LIGHT0, URL)), *up, (3, store(A0), store(B0))]
    story = play(*started, (20, stepped(A0, 10), stepped(B0, 10)), (30, killed(B0)), config=wide)
    (assigned,) = story.all(act.Assign, since=30)
    assert [(rank.rank, rank.node) for rank in assigned.ranks] == [(0, "n5"), (2, "n6"), (1, "n5"), (3, "n6")]


def test_a_new_one_is_started_a_moment_later_and_never_as_the_same_step() -> None:
    story = play(*STARTED, (30, killed(B0)), (40,), config=warm())
    assert story.times(act.Launch, S1) == [30 + REFILL_S]
    assert story.records("step_launched")[-1]["reason"] == "group 1 has taken the one before"
    assert story.all(act.Launch, since=30) == [act.Launch(S1, None, Place(("n2",)))]  # where the group was


def test_two_groups_that_fail_at_once_get_one_each_and_the_third_starts_cold() -> None:
    settings = warm(2, groups={"count": 4})
    steps = [StepId(f"group-{g:04d}", 0) for g in range(4)]
    up = [(2, *[ready(s, f"n{g + 1}") for g, s in enumerate(steps)], ready(S0, "n5"), ready(OTHER, "n6"))]
    started = [(0, granted(6)), (1, said.lighthouse_up(LIGHT0, URL)), *up, (3, *[store(s) for s in steps])]
    joined = [(20, *[stepped(s, 10) for s in steps])]
    story = play(*started, *joined, (30, *[killed(s) for s in steps[1:]]), config=settings)
    assert sorted(story.ids(act.Assign, since=30), key=str) == [S0, OTHER]
    assert story.ids(act.Launch, since=30) == [StepId("group-0003", 1)]


def test_a_group_whose_standby_waited_beside_it_goes_on_where_it_was() -> None:
    story = play((0, granted(2)), *STARTED[1:4], (5, ready(S0, "n2")), (6, killed(B0)), config=warm())
    assert story.state.groups[1].place == Place(("n2",))
    assert story.ids(act.Assign, since=6) == [S0]


def test_before_the_lighthouse_is_up_a_standby_has_taken_over_but_is_not_told() -> None:
    down = (29, ev.Ended(LIGHT0, None, signal=9))
    story = play(*STARTED, down, (30, killed(B0)), config=warm())
    assert story.ids(act.Assign, since=29) == [S0]  # the address stays the same
    first = play((0, granted(3)), (1, ready(A0), ready(S0, "n3")), (2, killed(A0)), config=warm())
    assert first.ids(act.Assign) == []
    assert first.state.groups[0].id == S0


def test_our_lighthouse_is_told_of_the_groups_attempt_whatever_step_it_runs_as() -> None:
    ours = warm(lighthouse={"kind": "ftslurm"})
    story = play(*STARTED, (30, killed(B0)), (31, storing(S0)), (50, killed(S0)), config=ours)
    told: list[act.Action] = [a for t, a in story.done if t >= 30 and is_a(a, msg.Member, msg.Evict)]
    assert told == [
        act.Send(LIGHT0, msg.Evict(1, 0, "n2:29500/store")),
        act.Send(LIGHT0, msg.Member(1, 1, "n3:29500/store")),
        act.Send(LIGHT0, msg.Evict(1, 1, "n3:29500/store")),
    ]
    again = play(
        *STARTED,
        (30, killed(B0)),
        (31, storing(S0)),
        (40, killed(LIGHT0)),
        (41, said.lighthouse_up(LIGHT1, URL)),
        config=ours,
    )
    told = [a for t, a in again.done if t >= 40 and is_a(a, msg.Member)]
    assert told == [
        act.Send(LIGHT1, msg.Member(0, 0, "n1:29500/store")),
        act.Send(LIGHT1, msg.Member(1, 1, "n3:29500/store")),
    ]


# --- faults during the takeover --------------------------------------------------------------------------------------


def test_a_standby_that_dies_unused_is_started_again_and_the_group_starts_cold() -> None:
    story = play(*STARTED, (25, killed(S0)), (25.5, killed(B0)), (30,), config=warm())
    assert story.all(act.Launch, since=25) == [
        act.Launch(B1, 1, Place(("n2",))),
        act.Launch(S1, None, Place(("n3",)), (S0,)),
    ]
    assert story.phases() == [Phase.RUNNING, Phase.STARTING]
    exited = story.records("step_exited")[0]
    assert (exited["unit"], exited["group"], exited["cause"]) == ("standby-000", None, "killed")
    assert len(story.records("restart_scheduled")) == 1  # the group's


def test_one_that_dies_in_the_same_moment_as_the_group_is_not_picked() -> None:
    sign = ev.TaskFailed(S0, Evidence(0, None, signal=9))
    story = play(*STARTED, (30, killed(B0), sign), config=warm())
    assert story.ids(act.Launch, since=30) == [B1]
    assert story.ids(act.Kill) == [S0]


def test_one_that_dies_as_it_takes_over_is_a_failure_of_the_group() -> None:
    settings = warm(restart={"backoff_s": 2.0})
    story = play(*STARTED, (30, killed(B0)), (30.1, killed(S0)), (40,), config=settings)
    assert story.all(act.Launch, since=30) == [
        act.Launch(S1, None, Place(("n2",))),
        act.Launch(B2, 1, Place(("n3",)), (S0,)),
    ]
    assert story.times(act.Launch, B2) == [32.1]
    assert [e["attempt"] for e in story.records("step_exited") if e["group"] == 1] == [0, 1]


def test_what_a_cold_launch_or_a_later_standby_has_to_clean_up() -> None:
    settings = warm(restart={"backoff_s": 0.0})
    cold = play(*STARTED, (30, killed(B0)), (31, killed(S0)), config=settings)
    (launch,) = [launch for launch in cold.all(act.Launch, since=30) if launch.group == 1]
    assert launch.fence == (S0,)
    warm_again = play(*STARTED, (30, killed(B0)), (33, ready(S1, "n2")), (40, killed(S0)), config=settings)
    (assigned,) = [a for a in warm_again.all(act.Assign, since=40) if a.group == 1]
    assert (assigned.id, assigned.fence) == (S1, (S0,))


def test_the_standby_that_follows_does_not_clean_up_the_one_that_lives_on_as_a_group() -> None:
    story = play(*STARTED, (30, killed(B0)), (33, ready(S1, "n2")), (40, killed(S1)), (50,), config=warm())
    assert [launch.fence for launch in story.all(act.Launch, since=30)] == [(), (S1,)]


def test_one_whose_node_is_lost_moves() -> None:
    story = play((0, granted(4)), *STARTED[1:], (30, node_lost(S0, "n3")), (32,), config=warm())
    assert story.all(act.Launch, since=30) == [act.Launch(S1, None, Place(("n4",)), (S0,))]
    assert story.phases() == [Phase.RUNNING] * 2


def test_one_that_fails_again_and_again_is_given_up_and_the_run_goes_on() -> None:
    settings = warm(restart={"max_per_group": 2, "backoff_s": 0.0})
    fails = [(30 + 10 * n, raised(StepId("standby-000", n), f"OSError: {n}")) for n in range(3)]
    story = play(*STARTED, *fails, (100, killed(B0)), config=settings)
    (given_up,) = story.records("standby_given_up")
    assert given_up["unit"] == "standby-000"
    assert "restart.max_per_group=2" in given_up["reason"]
    assert story.unit(S0).phase is Phase.FAILED
    assert story.outcome() is None
    assert story.ids(act.Launch, since=60) == [B1]


def test_one_that_does_not_get_ready_in_time_is_killed() -> None:
    story = play(*STARTED[:4], (5, stepped(A0, 1), stepped(B0, 1)), (601,), config=warm())
    assert story.times(act.Kill, S0) == [600]


def test_one_that_is_taken_but_gives_no_store_is_killed_soon_and_the_group_starts_cold() -> None:
    story = play(*STARTED, (30, killed(B0)), (59.9,), (60,), (60.1, ev.Ended(S0, None, signal=9)), config=warm())
    assert story.times(act.Kill, S0) == [60]
    (exited,) = story.records("step_exited", since=60)
    assert exited["cause"] == "start_timeout"
    assert "not ready after 30 s (a standby that was taken)" in str(exited["error"])
    story.wait(until=70)
    assert story.ids(act.Launch, since=60)[-1:] == [B2]


def test_one_that_is_being_brought_down_does_not_become_ready() -> None:
    sign = ev.TaskFailed(S0, Evidence(0, None, signal=9))
    story = play(
        *STARTED[:4], (5, stepped(A0, 1), stepped(B0, 1), sign), (6, ready(S0, "n3")), (7, killed(B0)), config=warm()
    )
    assert story.unit(S0).phase is Phase.STOPPING
    assert story.ids(act.Launch, since=7) == [B1]


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready_", [True, False])
def test_a_run_that_ends_ends_its_standbys_at_once(ready_: bool) -> None:
    started = STARTED if ready_ else (*STARTED[:4], (5, stepped(A0, 1), stepped(B0, 1)))
    story = play(*started, (30, stop()), (30.2, ev.Ended(S0, 137)), config=warm())
    assert story.times(act.Kill, S0) == [30]
    assert S0 not in story.ids(msg.Stop)
    assert story.records("step_exited")[0]["cause"] == "cancelled"


def test_standbys_do_not_keep_the_run_from_finishing() -> None:
    story = play(
        *STARTED, (60, finished(A0), finished(B0)), (60.1, ev.Ended(S0, 137), ev.Ended(LIGHT0, 137)), config=warm()
    )
    assert story.records("run_finished") == [
        {"outcome": "succeeded", "reason": "all groups finished", "steps": 10, "restarts": 0}
    ]


def test_once_a_group_has_finished_no_standby_is_started_any_more() -> None:
    story = play(*STARTED, (60, finished(A0)), (61, killed(S0)), (100,), config=warm(job={"total_steps": 10}))
    assert story.ids(act.Launch, since=60) == []


def test_a_standby_is_no_live_copy_of_the_state() -> None:
    story = play(*STARTED, (30, killed(A0), killed(B0)), config=warm())
    assert story.outcome() == "failed"
    assert "restart.on_state_loss" in story.reason()
    assert story.ids(act.Assign, since=30) == []


def test_after_a_full_restart_groups_come_back_through_standbys_too() -> None:
    resume = warm(restart={"on_state_loss": "checkpoint"})
    story = play(*STARTED, (30, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT)), config=resume)
    assert story.ids(act.Assign, since=30) == [S0]
    assert story.ids(act.Launch, since=30) == [B1]
    assert story.records("full_restart") != []
    assert A1 not in story.ids(act.Launch)


def test_a_standby_that_is_taken_leaves_its_records_in_order() -> None:
    story = play(*STARTED, (30, killed(B0)), config=warm())
    assert [r.event for r in story.all(JournalRecord, since=30)] == [
        "step_exited",
        "restart_scheduled",
        "step_launched",
    ]


def test_a_standby_that_finds_its_hardware_broken_leaves_the_node_out() -> None:
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    broken = [ev.TaskFailed(S0, Evidence(0, None, code=1, error=error, started=False)), ev.Ended(S0, 1)]
    story = play((0, granted(4)), *STARTED[1:], (30, broken), (40,), config=warm())
    assert [record["node"] for record in story.records("node_excluded")] == ["n3"]
    assert story.unit(S1).place == Place(("n4",))
    only = play(*STARTED, (30, broken), (40, killed(B0)), (41, node_lost(B1, "n2")), (60,), config=warm())
    assert only.unit(B2).place == Place(("n3",))  # the last resort
