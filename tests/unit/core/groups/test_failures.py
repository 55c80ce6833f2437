"""A group fails or loses its node: it alone is relaunched, within the budget, as histories."""

from __future__ import annotations

from math import inf

import pytest
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    Moment,
    config,
    finished,
    granted,
    killed,
    node_lost,
    play,
    ready,
    stepped,
    store,
)
from steps import A0, B0, B1, B2, B3, C0, C1, LIGHT0, URL

from ftslurm.core.groups.restart import WINDOW_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, Place, replace
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause, Says
from ftslurm.protocol.messages import Rank

THREE = config(groups={"count": 3})


ALL_THREE: tuple[Moment, ...] = (
    (0, granted(4)),
    (1, LIGHTHOUSE_UP),
    (2, ready(A0), ready(B0), ready(C0)),
    (3, store(A0), store(B0), store(C0)),
    (20, stepped(A0, 10), stepped(B0, 10), stepped(C0, 10)),
)


def test_a_failed_group_is_relaunched_alone_and_the_others_are_not_touched() -> None:
    before, after = play(*RUNNING), play(*RUNNING, (30, killed(B0)))
    assert after.all(act.Launch, since=30) == [act.Launch(B1, 1, Place(("n2",)))]
    assert after.state.groups[0] == before.state.groups[0]
    assert after.state.lighthouse == before.state.lighthouse
    assert after.ids(act.Kill) + after.ids(msg.Stop) == []


def test_the_lighthouse_that_fails_has_a_node_and_no_rank() -> None:
    for sign in (Evidence(0, None, signal=9), Evidence(0, "n1", code=1, error="no port")):
        story = play(*RUNNING, (30, ev.TaskFailed(LIGHT0, sign)), (30.3, ev.Ended(LIGHT0, code=137)))
        (exited,) = story.records("step_exited")
        assert (exited["unit"], exited["rank"]) == ("lighthouse", None)


def test_the_journal_tells_the_story_of_a_failure() -> None:
    story = play(*RUNNING, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))), (30.3, ev.Ended(B0, code=137)))
    (exited,), (scheduled,) = story.records("step_exited"), story.records("restart_scheduled")
    known = {"unit": "group-0001", "group": 1, "attempt": 0, "cause": "killed", "code": None, "signal": 9}
    known |= {"node": "n2", "rank": 0, "error": None, "step": 10, "noticed": 30}
    assert known.items() <= exited.items()
    reason = "restart: killed (signal 9) on n2, rank 0"
    assert {"group": 1, "attempt": 1, "due": 30.3, "reason": reason}.items() <= scheduled.items()
    assert story.records("step_launched", since=30)[0]["reason"] == reason


def test_a_step_is_brought_down_at_the_first_sign_and_relaunched_when_it_is_gone() -> None:
    story = play(*RUNNING, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))), (30.3, ev.Ended(B0, code=137)))
    assert story.times(act.Kill, B0) == [30]
    assert story.times(act.Launch, B1) == [30.3]


def test_a_cancelled_step_whose_worker_reports_sigterm_before_srun_has_said_why_was_cancelled() -> None:
    """As on a busy machine: srun must not be ended before it has told."""
    slurm = config(cluster={"kind": "slurm"})
    told = ev.TaskFailed(B0, Evidence(None, "n2", cause=Cause.CANCELLED, error="Slurm cancelled the step (scancel)"))
    term = (30, ev.TaskFailed(B0, Evidence(0, None, signal=15)))
    story = play(*RUNNING, term, (30.3, told), (30.4, ev.Ended(B0, code=143), ev.Explained(False)), config=slurm)
    assert story.all(act.Kill) == []
    (end,) = story.records("step_exited")
    assert end["cause"] == "cancelled"
    story = play(*RUNNING, term, (30.3,), (30.5,), config=slurm)
    assert [kill.id for kill in story.all(act.Kill)] == [B0]
    story = play(*RUNNING, term, (30.5, ev.Ended(B0, code=143)), config=slurm)
    assert story.records("step_exited")[0]["cause"] == "killed"


def test_a_restarted_group_begins_alone_with_its_new_ranks() -> None:
    wide = config(groups={"nodes": 2, "workers": 1})
    started = (
        (0, granted(5)),
        (1, LIGHTHOUSE_UP),
        (2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")),
        (3, store(A0), store(B0)),
        (20, stepped(A0, 10), stepped(B0, 10)),
    )
    story = play(*started, (30, node_lost(B0, "n3")), (32, ready(B1, "n4", "n5")), (33, store(B1)), config=wide)
    assert story.all(act.Launch, since=30) == [act.Launch(B1, 1, Place(("n4", "n5")))]
    assert story.all(act.Assign, since=30) == [
        act.Assign(B1, 1, (Rank(0, "n4", 0, 0), Rank(1, "n5", 0, 1)), URL, attempt=1)
    ]
    assert story.all(msg.Begin, since=30) == [act.Send(B1, msg.Begin("n2", 29500, heals=True, floor=9))]


def test_a_group_begins_when_its_store_is_up() -> None:
    story = play(*RUNNING, (30, killed(B0)), (32, ready(B1)), (33, store(B1)), (35,))
    assert story.times(msg.Begin, B1) == [33]


def test_recovery_is_counted_from_the_first_sign_to_the_first_commit() -> None:
    story = play(
        *RUNNING,
        (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))),
        (30.3, ev.Ended(B0, code=137)),
        (31, ready(B1)),
        (32, store(B1)),
        (33.5, stepped(B1, 44)),
    )
    joined = story.records("group_joined", since=30)
    assert [(j["attempt"], j["seconds"], j["recovery_s"]) for j in joined] == [(1, 3.2, 3.5)]


def test_a_step_that_ends_without_a_sign_is_noticed_when_it_is_gone() -> None:
    again = ((31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)), (50, ev.Ended(B1, None, signal=9)))
    back = ((51, ready(B2)), (52, store(B2)), (54, stepped(B2, 60)))
    story = play(*RUNNING, (30, killed(B0)), *again, *back)
    assert [exited["noticed"] for exited in story.records("step_exited")] == [30, 50]
    assert [joined["recovery_s"] for joined in story.records("group_joined", since=30)] == [3, 4]


def test_each_failure_waits_twice_as_long_as_the_one_before() -> None:
    story = play(
        *RUNNING, (30, killed(B0)), (40, killed(B1)), (50, killed(B2)), (60,), config=config(restart={"backoff_s": 2})
    )
    assert [story.times(act.Launch, step) for step in (B1, B2, B3)] == [[30], [42], [54]]


def test_waiting_for_the_backoff_the_group_is_pending_and_asked_about_when_it_is_due() -> None:
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)))
    assert story.phases() == [Phase.RUNNING, Phase.PENDING]
    assert story.state.wakes == 41


def test_two_groups_that_fail_in_the_same_decision_are_both_relaunched() -> None:
    story = play(*ALL_THREE, (30, killed(B0), killed(C0)), config=THREE)
    assert [(launch.id.unit, launch.place) for launch in story.all(act.Launch, since=30)] == [
        ("group-0001", Place(("n2",))),
        ("group-0002", Place(("n3",))),
    ]
    assert story.outcome() is None


def test_two_groups_whose_nodes_die_together_do_not_move_to_one_spare_node() -> None:
    story = play(*ALL_THREE, (30, node_lost(B0, "n2"), node_lost(C0, "n3")), config=THREE)
    assert [launch.place for launch in story.all(act.Launch, since=30)] == [Place(("n4",))]
    assert story.phases() == [Phase.RUNNING, Phase.STARTING, Phase.PENDING]


def test_policy_never_gives_the_group_up_and_the_others_go_on() -> None:
    story = play(
        *RUNNING,
        (30, killed(B0)),
        (60, finished(A0)),
        (61, ev.Ended(LIGHT0, 0)),
        config=config(restart={"max_per_group": 0}),
    )
    assert story.records("group_given_up") == [{"group": 1, "reason": "restart.max_per_group=0"}]
    assert story.ids(act.Launch, since=1) == []
    assert story.all(act.Finish) == [
        act.Finish("succeeded", "1 of 2 groups finished; group 1 did not, and the training went on without it")
    ]
    assert story.records("run_finished")[0]["missing"] == [1]


@pytest.mark.parametrize(("least", "goes_on"), [(1, True), (2, False)])
def test_a_used_up_budget_ends_the_run_only_if_fewer_than_groups_min_are_left(least: int, goes_on: bool) -> None:
    once = config(groups={"min": least}, restart={"max_per_group": 1})
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), config=once)
    assert "restart.max_per_group=1" in story.records("group_given_up")[0]["reason"]
    assert story.phases()[1] is Phase.FAILED
    if goes_on:
        assert story.outcome() is None
        assert story.phases()[0] is Phase.RUNNING
    else:
        assert story.outcome() == "failed"
        assert "groups.min=2" in story.reason()
        assert "restart.max_per_group=1" in story.reason()
        assert story.ids(msg.Stop) == [A0]


def test_failures_older_than_the_window_are_forgotten() -> None:
    once = config(restart={"max_per_group": 1})
    story = play(*RUNNING, (30, killed(B0)), (30 + WINDOW_S, killed(B1)), config=once)
    assert story.times(act.Launch, B2) == [30 + WINDOW_S]


def test_a_group_whose_node_is_lost_moves_to_a_spare_and_the_node_is_not_used_again() -> None:
    story = play(*RUNNING, (30, node_lost(B0, "n2")), (40, killed(B1)), (50,))
    assert [launch.place for launch in story.all(act.Launch, since=30)] == [Place(("n3",)), Place(("n3",))]
    assert story.state.nodes.out() == {"n2"}
    assert story.records("step_exited", since=30)[0]["cause"] == "node_lost"


def test_without_a_spare_node_the_group_waits_and_the_others_go_on() -> None:
    two = ((0, granted(2)), *RUNNING[1:])
    story = play(*two, (30, node_lost(B0, "n2")), (500, stepped(A0, 900)))
    assert story.phases() == [Phase.RUNNING, Phase.PENDING]
    assert story.ids(act.Launch, since=30) == []
    assert 510 <= story.state.wakes < inf  # its return is checked at intervals, and not in a busy loop


def test_a_waiting_group_gets_the_nodes_of_one_that_was_given_up() -> None:
    once = config(groups={"count": 3}, restart={"max_per_group": 1})
    full = ((0, granted(3)), *ALL_THREE[1:])
    story = play(*full, (30, killed(C0)), (40, node_lost(B0, "n2")), (50, killed(C1)), config=once)
    assert story.phases() == [Phase.RUNNING, Phase.STARTING, Phase.FAILED]
    assert story.all(act.Launch, since=40) == [act.Launch(B1, 1, Place(("n3",)))]


def test_the_journal_has_each_sign_once_and_a_last_line_only_as_a_last_resort() -> None:
    printed, only = "its log says: KeyError: 'lr'", frozenset({Says.PRINTED})
    raised, line = (Evidence(0, None, 1, error=text) for text in ("KeyError: 'lr'", printed))
    others = [Evidence(1, None, code=3, error=printed, says=only)] * 2
    signs = [raised, replace(line, says=only), raised, *others]
    story = play(*RUNNING, (30, *(ev.TaskFailed(B0, sign) for sign in signs), ev.Ended(B0, code=1)))
    (exited,) = story.records("step_exited")
    assert exited["evidence"] == ["task 0 on n2: exit code 1: KeyError: 'lr'", f"task 1: exit code 3: {printed}"]
