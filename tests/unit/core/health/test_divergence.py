"""Groups that must be equal: who is wrong, who is told, and what is never taken for a fault."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import said
from histories import Moment, Story, config, finished, granted, killed, play, ready, stepped, store
from steps import A0, ANN, B0, C0, LIGHT0, URL

from ftslurm.core.health.divergence import KEPT
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase, Saved, StepId
from ftslurm.protocol import messages as msg

GOOD, BAD, WORSE = "a" * 16, "b" * 16, "c" * 16


def attempt(group: int, number: int = 0) -> StepId:
    return StepId(f"group-{group:04d}", number)


def settings(groups: int = 3, workers: int = 1, **health: Any) -> Any:
    groups_of = {"count": groups, "nodes": workers}
    return config(groups=groups_of, health={"compare_every": 10, **health}, standby={"count": 0})


def trains(groups: int = 3, nodes: int | None = None) -> list[Moment]:
    """Return a run whose groups have all committed a step; group 0 is on n1."""
    steps = [attempt(group) for group in range(groups)]
    return [
        (0, granted(nodes or groups + 1)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, *[ready(step) for step in steps]),
        (3, [store(step) for step in steps]),
        (5, [stepped(step, 1) for step in steps]),
    ]


def reports(number: int, digests: Sequence[str | None], attempts: Sequence[int] = ()) -> list[ev.Event]:
    """Return what the groups report after a step; None: nothing."""
    numbers = [*attempts, *[0] * len(digests)]
    return [said.digested(attempt(n, numbers[n]), number, one) for n, one in enumerate(digests) if one]


def wrong(story: Story) -> list[int]:
    return [unit.group_id for unit in story.state.groups if unit.phase is Phase.STOPPING]


@pytest.mark.parametrize(
    ("digests", "stopped", "told"),
    [
        ([GOOD, GOOD, GOOD], [], []),
        ([GOOD, BAD, GOOD], [1], [(1,)]),
        ([BAD, GOOD, GOOD], [0], [(0,)]),
        ([BAD, GOOD, GOOD, WORSE, GOOD], [0, 3], [(0,), (3,)]),
        ([BAD, GOOD, GOOD, BAD, GOOD], [0, 3], [(0,), (3,)]),
        ([GOOD, BAD], [], [(0, 1)]),
        ([GOOD, BAD, WORSE], [], [(0, 1, 2)]),
        ([GOOD, BAD, BAD, GOOD], [], [(0, 1, 2, 3)]),
        ([GOOD, BAD, None], [], []),  # the third will tell
        ([GOOD, GOOD, None], [], []),
        ([GOOD, GOOD, BAD, None], [], []),
        ([GOOD, GOOD, GOOD, BAD, None], [3], [(3,)]),  # a majority of all five
        ([GOOD], [], []),
    ],
)
def test_a_majority_shows_who_is_wrong(
    digests: list[str | None], stopped: list[int], told: list[tuple[int, ...]]
) -> None:
    for seed in range(5):  # in whatever order they report
        order = reports(10, digests)
        Random(seed).shuffle(order)
        story = play(
            *trains(len(digests)),
            *((10 + n / 8, event) for n, event in enumerate(order)),
            config=settings(len(digests)),
        )
        assert wrong(story) == stopped
        found = story.records("replicas_differ")
        named = sorted(group for record in found for group in record["groups"])
        assert named == sorted(group for groups in told for group in groups)
        assert all(record["equal"] == (digests.count(GOOD) if stopped else 0) for record in found)


def test_a_drill_leaves_the_node_out_of_this_run_and_tells_other_runs_nothing() -> None:
    story = play(
        *trains(),
        (10, reports(10, [GOOD, GOOD, GOOD])),
        (11, ev.Asked("inject", ANN, "c", 1, 0, fault="corrupt")),
        (400, reports(20, [GOOD, BAD, GOOD])),
        (401, ev.Ended(B0, code=137)),
        config=settings(),
    )
    assert [record["node"] for record in story.records("node_excluded")] == ["n2"]
    assert story.all(act.NoteBroken) == []


def test_the_group_leaves_its_node_heals_at_once_and_its_checkpoints_are_not_restored() -> None:
    story = play(
        *trains(),
        (10, reports(10, [GOOD, GOOD, GOOD])),
        (20, reports(20, [GOOD, BAD, GOOD])),
        (21, ev.Ended(B0, code=137)),
        config=settings(),
    )
    assert story.times(act.Kill, B0) == [20]
    (evicted,) = story.sent(msg.Evict)
    assert (evicted.group, evicted.attempt) == (1, 0)
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["node"], exited["rank"]) == ("diverged", "n2", 0)
    assert [record["node"] for record in story.records("node_excluded")] == ["n2"]
    assert [(note.node, "other weights" in note.reason) for note in story.all(act.NoteBroken)] == [("n2", True)]
    again = story.all(act.Launch)[-1]
    assert (again.id, again.place.nodes) == (attempt(1, 1), ("n4",))
    assert story.times(act.Launch, again.id) == [21]
    (distrusted,) = story.all(act.DistrustCheckpoints)
    assert (distrusted.group, distrusted.attempt, distrusted.after) == (1, 0, 10)
    assert [record["step"] for record in story.records("checkpoints_distrusted")] == [10]
    assert story.phases()[0] is story.phases()[2] is Phase.RUNNING


def test_the_next_controller_goes_on_and_trusts_nothing_that_it_has_not_compared() -> None:
    story = play(*trains(), (20, reports(20, [GOOD, BAD, GOOD])), (21, ev.Ended(B0, code=137)), config=settings())
    assert [one.after for one in story.all(act.DistrustCheckpoints)] == [0]


@pytest.mark.parametrize("cause", [{"code": 137}, {"code": 0}, {"signal": 9, "code": None}])
def test_a_cause_that_comes_later_does_not_hide_it(cause: dict[str, Any]) -> None:
    story = play(*trains(), (20, reports(20, [GOOD, BAD, GOOD])), (21, ev.Ended(B0, **cause)), config=settings())
    assert [record["cause"] for record in story.records("step_exited")] == ["diverged"]


@pytest.mark.parametrize("behind", range(3))
def test_a_group_whose_digests_come_late_still_has_its_vote(behind: int) -> None:
    """Messages of one group may be read some steps after those of the others."""
    late = [said.digested(attempt(behind), 10, BAD if behind == 1 else GOOD)]
    first = [GOOD, BAD, GOOD]
    first[behind] = None  # type: ignore[call-overload]
    ahead = [(10.0 + n, reports(10 * n, first)) for n in range(1, KEPT)]
    story = play(*trains(), *ahead, (30, late), config=settings(on_divergence="stop"))
    assert story.outcome() is None
    assert [record["groups"] for record in story.records("replicas_differ")] == [[1]]
    never = play(*trains(), *ahead, (30, reports(10 * KEPT, first)), config=settings())
    named = [record["groups"] for record in never.records("replicas_differ")]
    assert named == ([] if behind == 1 else [[n for n in range(3) if n != behind]])


def test_without_a_majority_people_are_told_once_and_the_training_goes_on() -> None:
    later = [(10.0 * n, reports(10 * n, [GOOD, BAD])) for n in range(1, 9)]
    story = play(*trains(2), *later, config=settings(2))
    (found,) = story.records("replicas_differ")
    assert (found["groups"], found["nodes"], found["step"]) == ([0, 1], ["n1", "n2"], 10)
    assert "n1" in found["reason"]
    assert "n2" in found["reason"]
    assert wrong(story) == []
    assert story.outcome() is None


@pytest.mark.parametrize("digests", [[GOOD, BAD, GOOD], [GOOD, BAD, WORSE]])
def test_a_comparison_that_nobody_asked_for_ends_no_group_and_tells_people_once(digests: list[str]) -> None:
    later = [(10.0 * n, reports(100 * n, digests)) for n in range(1, 5)]
    auto = settings(compare_every="auto")
    story = play(*trains(), *later, (60, [finished(attempt(group)) for group in range(3)]), config=auto)
    (found,) = story.records("replicas_differ")
    assert (found["step"], found["equal"], 1 in found["groups"]) == (100, 0, True)
    assert [record["cause"] for record in story.records("step_exited") if record["group"] is not None] == ["ok"] * 3
    assert (story.outcome(), story.reason()) == ("succeeded", "all groups finished; groups differ, see the warning")


@pytest.mark.parametrize("setting", ["report", "average", "ignore"])
def test_of_equal_groups_the_buffers_are_compared_and_people_told_once(setting: str) -> None:
    """Steps, orders, and which groups report which buffers are drawn."""
    for seed in range(12):
        draw, groups = Random(seed), Random(seed).randint(2, 5)
        story = play(*trains(groups), config=settings(groups, compare_every="auto", buffers=setting))
        differ, now = False, 10.0
        for number in range(100, 1000, 100):
            weights = GOOD if draw.random() < 0.7 else None
            about = [(weights or draw.choice([GOOD, BAD]), draw.choice([GOOD, GOOD, GOOD, BAD])) for _ in range(groups)]
            events = [
                said.digested(attempt(n), number, one, buffers=other, layers="m.1")
                for n, (one, other) in enumerate(about)
            ]
            draw.shuffle(events)
            events = events[: draw.choice([groups, groups, groups - 1])]
            for event in events:
                now += 0.1
                story.turn(now, [event])
            equal = len({one for one, _ in about}) == 1
            differ |= equal and len(events) == groups and len({other for _, other in about}) > 1
        told = differ and setting == "report"
        warnings = [record for record in story.records("warning") if "buffers differ" in record["text"]]
        assert [("those of m.1" in record["text"], record["group"]) for record in warnings] == [(True, None)] * told
        assert story.state.comparisons.buffers == told
        assert wrong(story) == []


def test_a_run_whose_buffers_differ_does_not_say_succeeded_alone() -> None:
    differ = [said.digested(attempt(n), 100, GOOD, buffers=one, layers="m.1") for n, one in enumerate((GOOD, BAD, BAD))]
    ends = (60, [finished(attempt(group)) for group in range(3)])
    story = play(*trains(), (10, differ), ends, config=settings(compare_every="auto"))
    assert (story.outcome(), story.reason()) == ("succeeded", "all groups finished; buffers differ, see the warning")


def test_groups_that_were_equal_again_are_told_of_when_they_differ_again() -> None:
    """A later step may round away what differs."""
    story = play(
        *trains(2),
        *((10.0 * n, reports(10 * n, [GOOD, one])) for n, one in enumerate([BAD, BAD, GOOD, WORSE, BAD], 1)),
        config=settings(2),
    )
    assert [record["step"] for record in story.records("replicas_differ")] == [10, 40]
    three = play(
        *trains(),
        (10, reports(10, [GOOD, BAD, WORSE])),
        (20, reports(20, [GOOD, GOOD, GOOD])),
        (30, reports(30, [GOOD, GOOD, BAD])),
        config=settings(),
    )
    assert wrong(three) == [2]


def test_a_rank_that_is_equal_says_nothing_of_another_that_differs() -> None:
    story = play(
        (0, granted(4)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, [*ready(A0, "n1", "n2"), *ready(B0, "n3", "n4")]),
        (3, [store(step) for step in (A0, B0)]),
        (5, [stepped(step, 1) for step in (A0, B0)]),
        config=settings(2, workers=2),
    )
    for n in (10, 20, 30, 40):
        story.turn(n, [said.digested(A0, n, GOOD, 1), said.digested(B0, n, BAD, 1), *reports(n, [GOOD, GOOD])])
    assert [(one["step"], one["rank"]) for one in story.records("replicas_differ")] == [(10, 1)]


def test_a_checkpoint_tells_the_next_controller_up_to_which_step_groups_were_equal() -> None:
    equal, first = (10, reports(10, [GOOD] * 3)), (9, said.checkpointed(A0, 9, "/c/step-9", 1.0))
    second = (15, said.checkpointed(A0, 15, "/c/step-15", 1.0))
    story = play(*trains(), first, equal, second, config=settings())
    assert [record.get("equal", 0) for record in story.records("checkpoint_saved")] == [0, 10]


def test_without_a_majority_nothing_is_restored_that_a_group_has_saved_which_is_down() -> None:
    story = play(
        *trains(),
        (10, reports(10, [GOOD, GOOD, GOOD])),
        (11, killed(C0)),
        (20, reports(20, [GOOD, BAD, None])),
        config=settings(on_divergence="stop"),
    )
    distrusted = {(one.group, one.attempt, one.after) for one in story.all(act.DistrustCheckpoints)}
    assert {(0, 0, 10), (1, 0, 10), (2, 1, 10)} == distrusted


def test_without_a_majority_the_run_ends_if_the_user_wants_that() -> None:
    equal, differ = (10, reports(10, [GOOD, GOOD])), (20, reports(20, [GOOD, BAD]))
    story = play(*trains(2), equal, differ, config=settings(2, on_divergence="stop"))
    assert story.records("checkpoints_distrusted") == []  # they may still save
    story.turn(21, [ev.Ended(step, code=code) for step, code in ((A0, 0), (B0, 143), (LIGHT0, 0))])
    assert story.outcome() == "failed"
    assert "health.on_divergence" in story.reason()
    assert "diverged" not in [one["cause"] for one in story.records("step_exited")]
    distrusted = [(one["group"], one["step"]) for one in story.records("checkpoints_distrusted")]
    assert distrusted == [(0, 10), (1, 10)]  # since they were last equal: nobody knows which of them is right


def test_the_same_ranks_are_compared() -> None:
    ranks = [*ready(A0, "n1", "n2"), *ready(B0, "n3", "n4"), *ready(C0, "n5", "n6")]
    begun = [
        (0, granted(8)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, ranks),
        (3, [store(step) for step in (A0, B0, C0)]),
        (5, [stepped(step, 1) for step in (A0, B0, C0)]),
    ]
    equal = [said.digested(step, 10, one, rank) for step in (A0, B0, C0) for rank, one in enumerate((GOOD, BAD))]
    story = play(*begun, (10, equal), config=settings(workers=2))
    assert story.records("replicas_differ") == []
    odd = [said.digested(step, 20, one, 1) for step, one in ((A0, GOOD), (B0, GOOD), (C0, BAD))]
    story.turn(20, [*odd, *[said.digested(step, 20, GOOD) for step in (A0, B0, C0)]])
    (found,) = story.records("replicas_differ")
    assert (found["groups"], found["nodes"], found["rank"]) == ([2], ["n6"], 1)


def test_what_is_kept_has_a_bound() -> None:
    story = play(*trains(), config=settings())
    for number in range(10, 300, 10):
        story.turn(number, reports(number, [GOOD, GOOD, GOOD]))
        story.turn(number + 1, [said.digested(A0, number, GOOD, rank=number)])  # which there is not
    kept = story.state.comparisons
    assert list(kept.steps) == [0]
    assert len(kept.steps[0]) == KEPT
    assert kept.told == frozenset()


def test_a_group_that_is_back_and_one_that_never_reports_are_no_reason_to_wait_for_ever() -> None:
    story = play(*trains(3), (10, reports(10, [GOOD, BAD, None])), config=settings())
    assert story.records("replicas_differ") == []
    for n in range(2, KEPT + 1):
        assert story.records("replicas_differ") == []
        story.turn(10.0 * n, reports(10 * n, [GOOD, None, None]))
    # Now the third has had its time.
    assert [record["step"] for record in story.records("replicas_differ")] == [10]


def test_what_an_attempt_before_has_reported_is_not_compared() -> None:
    """Group 1 reports a step and dies; the run goes back, and all reach that step again with other weights."""
    story = play(
        *trains(),
        (10, reports(10, [None, BAD, None])),
        (11, killed(B0)),
        (12, reports(10, [GOOD, None, GOOD])),
        (13, ready(attempt(1, 1), "n2")),
        (14, said.store_up(attempt(1, 1), "n2", 29500)),
        (15, stepped(attempt(1, 1), 11)),
        (16, reports(10, [GOOD, None, GOOD])),
        config=settings(),
    )
    assert story.unit(B0).joined
    assert story.records("replicas_differ") == []
    assert wrong(story) == []


def test_thousands_of_comparisons_with_deaths_between_find_only_what_differs() -> None:
    """Groups die, come back, miss steps and report late or never; all live ones are equal, so nobody is accused."""
    for seed in range(6):
        draw, groups = Random(seed), 5
        story = play(*trains(groups, nodes=9), config=settings(groups))
        now, numbers = 10.0, [0] * groups
        for number in range(10, 400, 10):
            digest = f"{number + 1000 * seed:016x}"
            events = [
                said.digested(attempt(n, numbers[n]), number, digest) for n in range(groups) if draw.random() < 0.9
            ]
            draw.shuffle(events)
            if draw.random() < 0.3:
                victim = draw.randrange(groups)
                unit = story.state.groups[victim]
                if unit.phase is Phase.RUNNING and len([u for u in story.state.groups if u.joined]) > 2:
                    step = attempt(victim, numbers[victim])
                    events += killed(step)
            for event in events:
                now += 0.05
                story.wait(now)
                story.turn(now, [event])
            for n, unit in enumerate(story.state.groups):
                if unit.phase is Phase.STARTING and draw.random() < 0.6:
                    numbers[n] = unit.attempt
                    step = attempt(n, unit.attempt)
                    node = unit.place.nodes[0] if unit.place else "n1"
                    now += 1
                    story.wait(now)
                    story.turn(now, ready(step, node))
                    story.turn(now + 0.1, [said.store_up(step, node, 29500)])
                    now += 0.2
                    story.turn(now, [stepped(step, number + 1)])
            now += 60
        assert story.records("replicas_differ") == [], seed
        assert len(story.state.comparisons.steps[0]) <= KEPT


def _saved_from(story: Story) -> list[int]:
    return [one.after for one in story.all(act.DistrustCheckpoints)]


def test_a_history_that_a_full_restart_has_undone_says_nothing_of_what_is_saved_after_it() -> None:
    """All groups were equal after step 30, restarted from a checkpoint of step 5, and one of them differs at 20."""
    steps, again = [A0, B0, C0], [attempt(group, 1) for group in range(3)]
    story = play(
        *trains(),
        (10, [said.checkpointed(A0, 5, "/c/step-5", 1.0), *reports(30, [GOOD, GOOD, GOOD])]),
        (11, [event for step in steps for event in killed(step, checkpoint=Saved("/c/step-5", 5))]),
        config=settings(),
    )
    story.wait(12)
    assert {step.attempt for step in story.ids(act.Launch) if step.unit.startswith("group")} == {0, 1}
    story.turn(13, [event for n, step in enumerate(again) for event in ready(step, f"n{n + 1}")])
    story.turn(14, [store(step) for step in again])
    story.turn(15, [stepped(step, 6) for step in again])
    story.turn(20, reports(20, [GOOD, BAD, GOOD], [1, 1, 1]))
    story.turn(21, killed(again[1]))
    assert _saved_from(story) == [5]  # from which all started


def test_what_a_group_reports_that_then_dies_does_not_make_the_others_equal() -> None:
    story = play(
        *trains(),
        (10, reports(10, [GOOD, GOOD, GOOD])),
        (20, reports(20, [GOOD, GOOD, None])),
        (20.5, killed(A0)),
        (20.6, reports(20, [None, GOOD, None])),
        config=settings(),
    )
    assert story.state.comparisons.equal[0] == 10


@pytest.mark.parametrize("source", [GOOD, BAD])
def test_a_group_that_heals_from_one_of_two_that_differ_makes_no_majority(source: str) -> None:
    """Group 0 is down as the others begin to differ: what it has afterwards is a copy, and says nothing."""
    back = attempt(0, 1)
    story = play(
        *trains(),
        (8, killed(A0)),
        (10, reports(10, [None, GOOD, BAD])),
        (13, ready(back, "n1")),
        (14, said.store_up(back, "n1", 29500)),
        (15, stepped(back, 11)),
        *((10.0 * n, reports(10 * n, [source, GOOD, BAD], [1, 0, 0])) for n in range(2, 6)),
        config=settings(),
    )
    assert wrong(story) == []
    assert [record["groups"] for record in story.records("replicas_differ")] == [[1, 2]]
    story.turn(60, killed(attempt(2)))  # it heals, too: now there is nothing to decide
    again = attempt(2, 1)
    story.turn(63, ready(again, "n3"))
    story.turn(64, [said.store_up(again, "n3", 29500)])
    story.turn(65, [stepped(again, 61)])
    story.turn(70, reports(70, [GOOD, GOOD, WORSE], [1, 0, 1]))
    assert wrong(story) == [2]


@pytest.mark.parametrize("ended", [True, False])
def test_a_group_that_differs_is_ended_by_the_next_controller_too_and_what_it_has_saved_is_not_restored(
    ended: bool,
) -> None:
    made = settings()
    made.cluster.kind = "slurm"
    moments = (10, *reports(10, [GOOD] * 3)), (20, *reports(20, [GOOD, BAD, GOOD]))
    story = play(*trains(), *moments, config=made).taken_over(20.5)
    if not ended:
        story.turn(21, [said.adopted(B0, ready=True, assigned=True, begun=True, at=22)])
    story.turn(22, [ev.Ended(B0, 0)])
    story.wait(30)
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["node"]) == ("diverged", "n2")
    assert [e["node"] for e in story.records("node_excluded")] == ["n2"]
    marked = [(one.group, one.attempt, one.after) for one in story.all(act.DistrustCheckpoints)]
    assert marked == [(1, 0, 10)]
    assert story.all(act.Launch)[-1].place.nodes == ("n4",)
