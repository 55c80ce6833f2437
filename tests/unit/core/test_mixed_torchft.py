"""A group whose torchft is of another version than the others' is refused before its script starts."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import said
from histories import CHECKPOINT, Moment, Story, config, granted, killed, play, ready, stepped, store
from steps import A0, A1, B0, B1, LIGHT0, S0, URL

from ftslurm.core.state.model import Phase
from ftslurm.protocol import messages as msg

OLD, NEW, OTHER = "torchft 0.2.0", "torchft 0.3.0", "torchft-nightly 2026.10.26"


def running(light: str = "", first: str = OLD, second: str = OLD) -> tuple[Moment, ...]:
    """Two groups on n1 and n2, which begin together."""
    return (
        (0, granted(4)),
        (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL, light)),
        (2, ready(A0, torchft=first), ready(B0, torchft=second)),
        (3, store(A0), store(B0)),
    )


def steps(*of: Any, time: float = 5, number: int = 1) -> Moment:
    return time, *(stepped(one, number) for one in of)


def refused(story: Story) -> list[str]:
    """Return the errors of all attempts that were refused; none of them may have begun, or be tried again."""
    exits = [line for line in story.records("step_exited") if line["cause"] == "other_version"]
    begun = {(line["group"], line["attempt"]) for line in story.records("script_begun")}
    assert not {(line["group"], line["attempt"]) for line in exits} & begun
    given_up = {line["group"]: line["reason"] for line in story.records("group_given_up")}
    for line in exits:
        assert given_up[line["group"]] == "every attempt would have it, too"
        assert story.state.groups[line["group"]].phase is Phase.FAILED
    return [f"{line['node']}: {line['error']}" for line in exits]


def after(story: Story, *moments: Moment) -> Story:
    for time, *events in moments:
        story.wait(time)
        story.turn(time, events)
    return story


def ends(*of: Any) -> list[Any]:
    """Return the ends of steps that were killed."""
    return [event for one in of for event in killed(one)]


def test_a_restart_with_another_version_is_refused_in_one_line_and_the_others_train_on() -> None:
    story = play(*running(), steps(A0, B0), (6, killed(B0)), (8, ready(B1, torchft=NEW)), (9, store(B1)))
    assert story.unit(B1).phase is Phase.STOPPING
    after(story, (10, ends(B1)), steps(A0, time=11, number=9))
    assert refused(story) == [f"n2: group 1 has {NEW} on n2, and group 0 {OLD} on n1"]
    assert (story.phases(), story.outcome()) == ([Phase.RUNNING, Phase.FAILED], None)


@pytest.mark.parametrize("versions", [*permutations(("", OLD, NEW, OTHER), 3)])
def test_who_comes_first_says_what_the_others_need_and_who_says_nothing_is_let_in(versions: tuple[str, ...]) -> None:
    light, first, second = versions
    story = play(*running(*versions))
    begun = [line["group"] for line in story.records("script_begun")]
    lets_first = "" in (light, first)
    lets_second = second == "" or {light, first if lets_first else ""} == {""}
    assert begun == [0] * lets_first + [1] * lets_second


def test_a_lighthouse_of_another_version_is_named() -> None:
    story = after(play(*running(light=NEW)), (4, ends(A0, B0)))
    assert refused(story) == [
        f"n{n + 1}: group {n} has {OLD} on n{n + 1}, and the Lighthouse {NEW} on n1" for n in (0, 1)
    ]
    assert story.outcome() == "failed"


def test_all_ranks_of_a_group_are_looked_at() -> None:
    groups = {"count": 1, "workers": 2, "nodes": 2, "per_node": 1}
    tasks = [said.hello(A0, task, f"n{task + 1}") for task in (0, 1)]
    versions = said.ready(A0, 0, OLD), said.ready(A0, 1, OTHER)
    up = (1, said.lighthouse_up(LIGHT0, URL))
    story = play((0, granted(2)), up, (2, *tasks, *versions), (3, store(A0)), config=config(groups=groups))
    assert refused(after(story, (4, ends(A0)))) == [f"n1: group 0 has {OLD} on n1, and group 0 {OTHER} on n2"]


def test_all_groups_may_come_back_with_another_version_together() -> None:
    lost = (6, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    again = (8, ready(A1, torchft=NEW), ready(B1, torchft=NEW)), (9, store(A1), store(B1))
    story = play(*running(), steps(A0, B0), lost, *again)
    assert refused(story) == []
    assert [line["attempt"] for line in story.records("script_begun")] == [0, 0, 1, 1]


def test_groups_without_a_quorum_may_differ() -> None:
    story = play(
        (0, granted(2)),
        (2, ready(A0, torchft=OLD), ready(B0, torchft=NEW)),
        (3, store(A0), store(B0)),
        config=config(lighthouse={"kind": "none"}),
    )
    assert len(story.sent(msg.Begin)) == 2
    assert refused(story) == []


def test_a_standby_brings_its_version_with_it() -> None:
    warm = (4, ready(S0, "n3", torchft=NEW))
    story = play(
        *running(),
        warm,
        steps(A0, B0),
        (6, killed(B0)),
        (7, said.store_up(S0, "n3", 1)),
        config=config(standby={"count": 1}),
    )
    after(story, (8, ends(S0)))
    assert refused(story) == [f"n3: group 1 has {NEW} on n3, and group 0 {OLD} on n1"]
