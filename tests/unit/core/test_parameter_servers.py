"""Groups without a quorum: each restarts alone, servers are stopped last, and all groups know their addresses."""

from __future__ import annotations

from typing import Any

import pytest
import said
from histories import (
    RUNNING,
    Moment,
    Story,
    config,
    finished,
    granted,
    killed,
    node_lost,
    play,
    raised,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, A1, A2, B0, B1, C0, S0

from ftslurm.config.schema import Config, Fault
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase, Saved, StepId
from ftslurm.protocol import messages as msg

URL, MOVED = "http://n1:4711/new_session", "http://n1:4712/new_session"


def apart(**sections: dict[str, Any]) -> Config:
    """Return the settings of independent groups."""
    return config(lighthouse={"kind": "none"}, **sections)


def served(min: int = 1, **sections: dict[str, Any]) -> Config:
    """Return the settings of a server, group 0, and two workers."""
    roles = {"count": 3, "min": min, "roles": {"server": 1, "worker": 2}, "serve": ["server"]}
    return apart(groups=roles, **sections)


def began(*steps: StepId, at: float = 1) -> list[Moment]:
    return [(at, *(ready(step) for step in steps)), (at + 1, *(store(step) for step in steps))]


PAIR = [(0, granted(3)), *began(A0, B0)]
SERVED = [
    (0, granted(4)),
    *began(A0, B0, C0),
    (3, said.serving(A0, URL)),
    (4, said.session_opened(B0), said.session_opened(C0)),
]


def test_no_lighthouse_is_started_and_nobody_waits_for_another() -> None:
    story = play((0, granted(2)), (1, ready(A0)), (2, store(A0)), config=apart())
    assert story.ids(act.Launch) == [A0, B0]
    assert [action.lighthouse for action in story.all(act.Assign)] == [""]
    assert story.times(msg.Begin, A0) == [2]
    story.turn(3, [*ready(B0)])
    story.turn(4, [store(B0)])
    story.turn(9, [*finished(A0)])
    story.turn(60, [*finished(B0)])
    assert story.outcome() == "succeeded"
    assert story.reason() == "all groups finished"  # no warning that no step was committed


def test_a_group_is_brought_back_after_another_has_finished() -> None:
    story = play(*PAIR, (30, finished(A0)), (100, killed(B0)), *began(B1, at=101), (300, finished(B1)), config=apart())
    assert story.times(act.Launch, B1) == [100]
    assert (story.outcome(), story.reason()) == ("succeeded", "all groups finished")


def test_all_may_fail_at_once_and_all_come_back() -> None:
    both = (30, stepped(A0, 7), killed(A0), killed(B0))  # a Manager may have told steps: of somebody else's Lighthouse
    story = play(*PAIR, both, *began(A1, B1, at=31), config=apart())
    assert story.ids(act.Launch) == [A0, B0, A1, B1]
    assert story.times(msg.Begin, A1) == [32]
    assert not story.records("full_restart")


def test_a_group_that_was_given_up_leaves_its_share_undone() -> None:
    once = {"max_per_group": 0}
    story = play(*PAIR, (30, killed(A0)), (90, finished(B0)), config=apart(restart=once))
    assert story.phases() == [Phase.FAILED, Phase.SUCCEEDED]
    assert (story.outcome(), story.reason()) == (
        "failed",
        "1 of 2 groups finished; group 0 did not, and the training went on without it",
    )


def test_a_requeued_run_counts_its_attempts_on_and_waits_for_nothing() -> None:
    saved = Saved("/checkpoints/step-00000040", 40)
    story = play(*PAIR, (6, killed(A0)), (8,), config=apart()).taken_over(20, home="requeued", checkpoint=saved)
    for time, *events in began(A2, B1, at=21):
        story.wait(time)
        story.turn(time, events)
    assert story.ids(msg.Begin, since=20) == [A2, B1]
    assert [(begin.heals, begin.floor) for begin in story.sent(msg.Begin, since=20)] == [(False, 0)] * 2
    story.turn(40, [*finished(A2), *finished(B1)])
    assert story.outcome() == "succeeded"


def test_nobody_is_told_that_it_heals() -> None:
    story = play(*SERVED, (5, said.served(A0, 40)), (9, killed(B0)), *began(B1, at=10), config=served())
    assert [(begin.heals, begin.floor) for begin in story.sent(msg.Begin, since=9)] == [(False, 0)]


def test_the_same_words_from_every_group_are_hopeless_at_the_start_only() -> None:
    end = [*raised(A0, "OSError: disk"), *raised(B0, "OSError: disk")]
    assert play(*PAIR, (5, end), config=apart()).outcome() == "failed"
    story = play(*PAIR, (500, end), config=apart())
    assert story.outcome() is None
    assert story.ids(act.Launch, since=500) == [A1, B1]


def test_how_long_its_script_ran_tells_whether_it_was_healthy() -> None:
    story = play(*PAIR, (30, killed(A0)), *began(A1, at=31), (200, killed(A1)), config=apart())
    assert story.times(act.Launch, A2) == [200]  # without backoff: 168 s are more than BACKOFF_MAX_S


def test_no_limit_runs_for_a_first_step() -> None:
    limited = served(timed={"join_timeout_s": 60.0})
    story = play(*SERVED, (5, said.served(A0, 1)), (1000, said.served(A0, 9)), config=limited)
    assert story.phases() == [Phase.RUNNING] * 3


def test_a_standby_takes_any_role() -> None:
    moments = [
        (0, granted(4)),
        *began(A0, B0, C0),
        (2, said.hello(S0, 0, "n4"), said.ready(S0, 0)),
        (3, said.serving(A0, URL)),
    ]
    story = play(*moments, (9, killed(A0)), config=served(standby={"count": 1}))
    (assign,) = story.all(act.Assign, since=9)
    assert (assign.id, assign.group, assign.servers) == (S0, 0, ("",))
    story.turn(10, [said.store_up(S0, "n4", 29500)])
    story.turn(11, [said.serving(S0, MOVED)])
    assert [(a.id, a.message.urls) for a in story.all(msg.Servers, since=11)] == [
        (S0, (MOVED,)),
        (B0, (MOVED,)),
        (C0, (MOVED,)),
    ]


# --- addresses of the servers -----------------------------------------------------------------------------------------


def told(story: Story, since: float) -> list[tuple[StepId, tuple[str, ...]]]:
    return [(action.id, action.message.urls) for action in story.all(msg.Servers, since)]


def test_everybody_is_told_where_the_server_is_that_it_is_gone_and_where_it_is_again() -> None:
    story = play(*SERVED, config=served())
    assert told(story, 0) == [(step, (URL,)) for step in (A0, B0, C0)]
    story.turn(30, [*killed(A0)])
    assert told(story, 30) == [(B0, ("",)), (C0, ("",))]  # at once: another process may soon get its port
    assert story.ids(act.Launch, since=30) == [A1]
    story.turn(31, [*ready(A1)])
    story.turn(32, [store(A1), said.serving(A1, MOVED)])
    assert told(story, 31) == [(A1, (MOVED,)), (B0, (MOVED,)), (C0, (MOVED,))]
    (back,) = story.records("serving", since=32)
    assert (back["group"], back["attempt"], back["url"], back["recovery_s"]) == (0, 1, MOVED, 2)


def test_who_is_assigned_later_learns_it_with_the_assignment() -> None:
    story = play(*SERVED, (30, killed(B0)), (31, ready(B1)), (32, store(B1)), config=served())
    (assign,) = story.all(act.Assign, since=30)
    assert assign.servers == (URL,)
    assert told(story, 30) == []
    story.turn(33, [said.session_opened(B1)])
    (first,) = story.records("session_opened", since=33)
    assert first["recovery_s"] == 3


def test_of_several_serving_groups_each_has_its_place() -> None:
    groups = {"count": 3, "roles": {"worker": 1, "ps": 1, "eval": 1}, "serve": ["ps", "eval"]}
    story = play((0, granted(3)), *began(A0, B0, C0), (3, said.serving(C0, URL)), config=apart(groups=groups))
    assert told(story, 0) == [(step, ("", URL)) for step in (A0, B0, C0)]


def test_a_parameter_server_of_a_group_that_is_not_to_serve_is_its_own_business() -> None:
    seen = (5, said.serving(A0, URL), said.served(A0, 77))
    story = play(*PAIR, seen, config=apart())
    assert told(story, 0) == []
    assert story.state.lineage.step == 0
    quorum = play(*RUNNING, (25, *seen[1:], said.session_opened(B0)))
    assert quorum.state.groups == play(*RUNNING, (25,)).state.groups
    assert quorum.state.lineage.step == 10


# --- how a run with servers ends --------------------------------------------------------------------------------------


def test_when_the_others_have_finished_the_server_is_stopped_and_the_run_succeeds() -> None:
    story = play(*SERVED, (30, finished(B0)), (50, finished(C0)), (51, ev.Ended(A0, 0)), config=served(min=2))
    assert story.times(msg.Stop, A0) == [50]
    assert story.outcome() == "succeeded"
    assert story.state.finished
    (end,) = story.records("step_exited", since=51)
    assert end["cause"] == "cancelled"
    assert told(story, 30) == []  # it is there to the end


def test_a_worker_that_is_given_up_does_not_end_the_run_as_long_as_enough_are_left() -> None:
    once = {"max_per_group": 0}
    moments = (*SERVED, (30, killed(B0)), (50, finished(C0)), (51, ev.Ended(A0, 0)))
    story = play(*moments, config=served(restart=once))
    assert story.outcome() == "succeeded"
    assert story.reason().startswith("1 of 2 groups finished; group 1 did not")
    story = play(*moments, config=served(min=2, restart=once))
    assert story.outcome() == "failed"
    assert "1 of 2 groups were given up, fewer than groups.min=2 are left" in story.reason()
    assert "restart.max_per_group=0" in story.reason()


def test_a_server_that_is_given_up_ends_the_run() -> None:
    story = play(*SERVED, (30, raised(A0, "OSError: disk")), config=served(restart={"max_per_group": 0}))
    assert story.outcome() == "failed"
    for word in ("group 0 was given up", "groups.serve", "restart.max_per_group=0"):
        assert word in story.reason()
    assert story.failure() == "OSError: disk"


def test_a_server_without_a_node_ends_the_run_and_a_worker_waits() -> None:
    slurm = {"cluster": {"kind": "slurm", "requeue": False}}
    moments = [(0, granted(3)), *SERVED[1:]]
    story = play(*moments, (30, node_lost(B0, "n2")), config=served(**slurm))
    assert story.outcome() is None
    story = play(*moments, (30, node_lost(A0, "n1")), (2000,), config=served(**slurm))
    assert story.outcome() == "failed"
    assert story.reason() == (
        "group 0 has no node to run on, and others need it (groups.serve): what it needs is spare nodes "
        "(cluster.spare_nodes), or a free node: n1 left out"
    )


def test_a_server_that_ends_by_itself_while_others_need_it_is_brought_back() -> None:
    story = play(*SERVED, (30, finished(A0)), config=served())
    (end,) = story.records("step_exited", since=30)
    assert (end["cause"], end["code"]) == ("user_error", 0)
    assert "groups.serve" in end["error"]
    assert story.ids(act.Launch, since=30) == [A1]


def test_a_server_that_ends_when_it_has_seen_the_last_worker_go_has_finished() -> None:
    story = play(
        *SERVED, (30, finished(B0)), (31, said.task_done(C0, 0), finished(A0)), (32, ev.Ended(C0, 0)), config=served()
    )
    assert story.phases() == [Phase.SUCCEEDED] * 3
    assert story.outcome() == "succeeded"
    assert story.ids(act.Launch, since=30) == []


def test_stop_asks_servers_and_workers_alike() -> None:
    story = play(*SERVED, (30, stop()), config=served())
    assert story.ids(msg.Stop) == [A0, B0, C0]


# --- progress ---------------------------------------------------------------------------------------------------------


def test_the_step_of_the_run_is_the_servers_also_when_it_goes_back() -> None:
    story = play(*SERVED, (5, said.served(A0, 40)), config=served())
    assert story.state.lineage.step == 40
    story.turn(30, [*killed(A0)])
    for time, events in enumerate([ready(A1), [store(A1)], [said.serving(A1, MOVED)], [said.served(A1, 20)]], 31):
        story.turn(time, events)
    assert story.state.lineage.step == 20
    assert [r["step"] for r in story.records("progress")] == [40, 20]


@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_planned_drill_strikes_any_group_at_the_servers_step(group: int) -> None:
    plan = served(faults={"plan": [Fault(group=group, at=20.0)]})
    story = play(*SERVED, (5, said.served(A0, 19)), config=plan)
    assert story.all(msg.Inject) == []
    story.turn(6, [said.served(A0, 21)])
    story.turn(7, [said.served(A0, 22)])
    assert [action.id for action in story.all(msg.Inject)] == [(A0, B0, C0)[group]]
