"""Decisions: what Slurm says of the run's nodes is known before a group that has failed starts again."""

from __future__ import annotations

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    Story,
    array_config,
    config,
    granted,
    killed,
    pilot,
    play,
    raised,
    ready,
    stepped,
    store,
)
from hypothesis import given
from hypothesis import strategies as st
from steps import A0, A1, B0, B1, C0

from ftslurm.core.health.node_health import ANSWER_S, ASK_AGAIN_S
from ftslurm.core.rules import begin
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Place
from ftslurm.slurm.evidence import node_fate

SLURM = config(cluster={"kind": "slurm"})
ROOT = "disk (root, 2026-11-25T22:10:00)"


def states(**words: str) -> list[ev.Event]:
    return [node_fate(node, word, ROOT if "drain" in word else "") for node, word in words.items()]


def launched(story: Story, since: float) -> list[tuple[str, ...]]:
    return [launch.place.nodes for launch in story.all(act.Launch, since)]


@pytest.mark.parametrize("ends", [killed(B0), raised(B0), [ev.Ended(B0, code=1)]])
def test_one_question_comes_before_the_next_attempt_which_goes_elsewhere(ends: list[ev.Event]) -> None:
    story = play(*RUNNING, (40, ends), config=SLURM)
    assert (story.all(act.AskNodes), launched(story, 40)) == ([act.AskNodes(("n1", "n2", "n3"))], [])
    story.turn(40.1, states(n1="allocated", n2="draining", n3="idle"))
    assert launched(story, 40) == [("n3",)]
    assert story.records("node_shunned") == [{"node": "n2", "reason": f"Slurm says draining: {ROOT}"}]
    story.turn(41, ready(B1, "n3"))
    story.wait(200)
    assert len(story.all(act.AskNodes)) == 1


TWO = (0, granted(2)), *RUNNING[1:]
DRAINED = (40, killed(B0)), (40.1, states(n1="allocated", n2="draining"))


def test_the_only_place_is_used_although_it_is_drained_if_no_job_may_be_submitted() -> None:
    story = play(*TWO, *DRAINED, config=config(cluster={"kind": "slurm", "requeue": False}))
    assert launched(story, 40) == [("n2",)]


def test_a_group_does_not_start_again_on_a_drained_node_but_in_a_job_of_its_own() -> None:
    story = play(*TWO, *DRAINED, (41, ev.Submitted(0, ("90",))), config=SLURM)
    assert (launched(story, 40), story.all(act.RequestJobs)) == ([], [act.RequestJobs(0, 1)])
    story.turn(50, [ev.JobsSeen((pilot("90", "n7"),), 49.9, 0.0)])
    assert launched(story, 40) == [("n7",)]


def test_a_group_that_waits_for_a_job_takes_its_node_back_when_that_is_resumed() -> None:
    story = play(*TWO, *DRAINED, (41, ev.Submitted(0, ("90",))), config=SLURM)
    story.wait(99)
    assert len(story.all(act.AskNodes)) == 1
    story.wait(40.1 + ASK_AGAIN_S)
    assert len(story.all(act.AskNodes)) == 2
    story.turn(101, states(n1="allocated", n2="mixed"))
    assert launched(story, 40) == [("n2",)]


def test_of_two_free_nodes_the_one_that_is_not_drained_is_taken() -> None:
    told = states(n1="mixed", n2="draining", n3="drained*", n4="idle")
    story = play((0, granted(4)), *RUNNING[1:], (40, killed(B0)), (40.1, told), config=SLURM)
    assert launched(story, 40) == [("n4",)]


def test_a_slurm_that_does_not_answer_delays_a_group_for_a_moment_only() -> None:
    story = play(*RUNNING, (40, killed(B0)), config=SLURM)
    story.wait(60)
    assert [time for time, action in story.done if isinstance(action, act.Launch) and time >= 40] == [40 + ANSWER_S]


def test_groups_that_fail_together_share_a_question() -> None:
    three = config(cluster={"kind": "slurm"}, groups={"count": 3})
    begun = (
        (0, granted(4)),
        (1, LIGHTHOUSE_UP),
        (2, ready(A0), ready(B0), ready(C0)),
        (3, store(A0), store(B0), store(C0)),
    )
    stepping = 20, stepped(A0, 10), stepped(B0, 10), stepped(C0, 10)
    story = play(*begun, stepping, (40, killed(B0), killed(C0)), (40.1, states(n2="draining", n3="idle")), config=three)
    assert len(story.all(act.AskNodes)) == 1
    assert sorted(launched(story, 40)) == [("n3",), ("n4",)]


def test_a_drain_that_is_taken_back_is_seen_at_the_next_failure() -> None:
    drained = *RUNNING, (40, killed(B0)), (40.1, states(n2="draining"))
    story = play(*drained, (41, ready(B1, "n3")), (42, killed(B1)), (42.1, states(n2="mixed", n3="idle")), config=SLURM)
    assert story.records("node_unshunned") == [{"node": "n2", "reason": "Slurm says mixed"}]
    story.wait(45)
    assert len(story.all(act.AskNodes)) == 2


BASES = ("idle", "mixed", "allocated", "completing", "planned", "reserved")
FLAGS = ("cloud", "not_responding", "planned", "reserved", "invalid_reg", "dynamic_norm", "blocked", "quux")
DRAINS = ("drained", "draining", "maint", "reboot_requested")


@given(
    st.sampled_from([*BASES, "quux", "unknown"]),
    st.lists(st.sampled_from(FLAGS), max_size=3),
    st.sampled_from(["", "+drain", "+maint", "+reboot_requested", *(f"={word}" for word in DRAINS)]),
    st.sampled_from(["", *"*~#!%$@^-+"]),
)
def test_a_state_is_read_in_the_words_of_any_version(base: str, flags: list[str], drain: str, mark: str) -> None:
    word = drain[1:] if drain.startswith("=") else "+".join([base, *flags]) + drain
    story = Story(SLURM, begin(SLURM))
    story.turn(0, [granted(3)])
    story.turn(1, states(n2=word + mark))
    assert story.state.nodes.those(lambda node: node.shunned) == ({"n2"} if drain else set())
    story.turn(2, states(n2="draining"))
    story.turn(3, states(n2=word + mark))
    serves = base in BASES or bool({"planned", "reserved"}.intersection(flags))
    assert story.state.nodes.those(lambda node: node.shunned) == (set() if serves and not drain else {"n2"})


def test_in_array_mode_the_job_on_a_drained_node_goes_on_and_a_failed_group_gets_another() -> None:
    jobs = [pilot("11", "n1"), pilot("12", "n2")]
    trains = (
        (0, granted(0)),
        (1, ev.JobsSeen(tuple(jobs), asked=1), said.lighthouse_up(ev.StepId("lighthouse", 0), "http://n1:1")),
        (2, ready(A0), ready(B0)),
        (3, store(A0), store(B0)),
        (20, stepped(A0, 10), stepped(B0, 10)),
    )
    story = play(
        *trains,
        (40, killed(A0)),
        (40.1, states(n1="mixed", n2="draining")),
        (41, ready(A1)),
        config=array_config(),
    )
    assert not story.all(act.CancelJobs)
    story.turn(50, killed(B0))
    story.turn(50.1, states(n1="mixed", n2="draining"))
    assert launched(story, 50) == []
    assert story.all(act.RequestJobs) == [act.RequestJobs(0, 1, ())]
    assert story.all(act.CancelJobs) == [act.CancelJobs(("12",))]
    assert [record["reason"] for record in story.records("allocation_lost")] == ["n2 is drained"]
    kept = play(
        *trains,
        (50, killed(B0)),
        (50.1, states(n1="mixed", n2="draining")),
        config=array_config(internal={"pilots": "12"}),
    )
    assert [launch.place for launch in kept.all(act.Launch, 50)] == [Place(("n2",), 0, "12")]


def test_nodes_that_other_runs_have_found_broken_come_last_and_are_told_once() -> None:
    noted = ev.NodesNoted(frozenset({"n2", "n9"}), "found broken: n2, n9")
    story = play((0, granted(3), noted), config=SLURM)
    assert [places for places in launched(story, 0) if places != ("n1",)] == [("n3",)]
    story.turn(1, [noted])
    assert story.records("warning") == [{"group": None, "text": "found broken: n2, n9"}]
    story = play((0, granted(2), noted), config=SLURM)
    assert ("n2",) in launched(story, 0)
    assert story.records("node_restored") == [{"node": "n2", "reason": "no other node is free"}]
