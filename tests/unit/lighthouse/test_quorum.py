"""The quorum rules as tables, torchft's and ours. Times are in seconds; all groups beat at 0 unless a row differs."""

from __future__ import annotations

from typing import Any

import pytest

from ftslurm.lighthouse.quorum import Ask, Member, NotYet, Quorum, Rules, View, judge

RULES = Rules(min_replicas=1, join_timeout_s=10.0, heartbeat_timeout_s=5.0)
NEXT = 50


def member(name: str, step: int = 0, **fields: Any) -> Member:
    return Member(name, step=step, **fields)


def view(
    asking: str = "",
    alive: str = "",
    last: str | None = None,
    since: float = 0.0,
    step: int = 0,
    **fields: Any,
) -> View:
    """Build a view; a letter is a group: groups that ask (and beat), that only beat, members of the last quorum."""
    quorum = None if last is None else Quorum(7, tuple(member(name) for name in last))
    asks = {name: Ask(member(name, step), since) for name in asking}
    return View(**{"beats": dict.fromkeys(asking + alive, 0.0), "asking": asks, "last": quorum, **fields})


def who(view: View, now: float = 0.0, **rules: Any) -> str | None:
    """Return the members of the quorum; None: there is none."""
    verdict = judge(view, Rules(**{**vars(RULES), **rules}), now, NEXT)
    return "".join(verdict.ids) if isinstance(verdict, Quorum) else None


@pytest.mark.parametrize(
    ("seen", "now", "rules", "expected"),
    [
        # the first quorum
        (view("ab"), 0, {}, "ab"),  # all who are alive ask
        (view("ba"), 0, {}, "ab"),  # in the order of their ids
        (view("ab"), 0, {"min_replicas": 3}, None),
        (view("abc"), 0, {"min_replicas": 3}, "abc"),
        (view("ab", alive="c"), 0, {}, None),  # c is waited for
        (view("ab", alive="c"), 4.9, {"join_timeout_s": 5}, None),
        (view("ab", alive="c"), 4.9, {"join_timeout_s": 4.9}, "ab"),  # not for ever
        (view("ab", alive="c"), 5.0, {}, None),  # heartbeats are late by now, also those of a and b
        (view("a", alive="b"), 4, {"join_timeout_s": 1}, None),  # half is not more than half
        (view("ab", alive="c"), 4, {"join_timeout_s": 1}, "ab"),
        (view("ab", alive="cd"), 4, {"join_timeout_s": 1}, None),
        (view("a", beats={"a": 3.0, "b": 0.0}), 5, {}, "a"),  # b is dead after heartbeat_timeout
        (view("ab", beats={"a": 3.0, "b": 0.0}), 5, {}, "a"),  # a group that asks and falls silent is dead as well
        # the fast path: all of the last quorum ask again
        (view("ab", alive="c", last="ab"), 0, {}, "ab"),  # c is not waited for
        (view("abc", alive="d", last="ab"), 0, {}, "abc"),  # but a group that asks is included
        (view("ab", last="abc"), 0, {}, "ab"),  # c is dead: not fast, but no other group is alive
        (view("ab", alive="c", last="abc"), 0, {}, None),  # c is alive, and busy
        (view("ab", alive="cde", last="ab"), 0, {"min_replicas": 3}, "ab"),  # T asks for no minimum here
        # ours: a group that is gone is not waited for
        (view("ab", last="abc", gone={"c"}), 0, {}, "ab"),
        (view("ab", alive="c", last="abc", gone={"c"}), 0, {}, "ab"),  # a late heartbeat does not revive it
        (view("abc", last="abc", gone={"c"}), 0, {}, "ab"),  # nor does a late request
        (view("ab", alive="d", last="abc", gone={"c"}), 0, {}, "ab"),  # its replacement is alive, but busy
        (view("a", alive="bd", last="abc", gone={"c"}), 0, {}, None),  # b is waited for
        (view("a", alive="de", last="abc", gone={"b", "c"}), 0, {}, "a"),  # a minority, but all that is left
        (view("a", last="abc", gone={"b", "c"}), 0, {"min_replicas": 2}, None),  # the minimum holds
        (view("d", alive="e", last="ab", gone={"a", "b"}), 0, {}, None),  # none left: as without a last quorum
        # ours: at the first start, groups that are still importing are waited for, for join_timeout
        (view("ab", expected=1), 0, {}, None),
        (view("ab", expected=1), 4, {"join_timeout_s": 4}, "ab"),
        (view("ab", expected=1, last="ab"), 0, {}, "ab"),  # later no more
        (view("ab", expected=1, last="abc"), 0, {}, "ab"),
        # nobody
        (view(), 0, {}, None),
        (view(alive="ab", last="ab"), 0, {}, None),
    ],
)
def test_who_is_in_the_quorum(seen: View, now: float, rules: dict[str, Any], expected: str | None) -> None:
    assert who(seen, now, **rules) == expected


def test_with_shrink_only_nobody_joins() -> None:
    asks = {name: Ask(member(name, shrink_only=name == "b"), 0.0) for name in "abc"}
    seen = view("abc", last="abd")
    seen = View(beats=seen.beats, asking=asks, last=seen.last)
    assert who(seen) == "ab"  # c may not join, d is dead


def test_with_shrink_only_and_no_last_quorum_everybody_is_in_it() -> None:
    asks = {name: Ask(member(name, shrink_only=True), 0.0) for name in "ab"}
    assert who(View(beats=dict.fromkeys("ab", 0.0), asking=asks)) == "ab"


def test_a_quorum_is_never_empty() -> None:
    asks = {"c": Ask(member("c", shrink_only=True), 0.0)}
    assert who(View(beats={"c": 0.0}, asking=asks, last=Quorum(7, (member("a"),)))) is None


@pytest.mark.parametrize(
    ("asking", "last", "failures", "expected"),
    [
        ("ab", "ab", 0, 7),  # the same members: the same id, no process group is set up anew
        ("ab", "ab", 1, NEXT),  # one of them failed to commit: its process group is broken
        ("ab", "abc", 0, NEXT),
        ("abc", "ab", 0, NEXT),
        ("ab", None, 0, NEXT),
        ("ab", None, 1, NEXT),
    ],
)
def test_the_id_changes_with_the_members_and_after_a_failed_commit(
    asking: str, last: str | None, failures: int, expected: int
) -> None:
    asks = {name: Ask(member(name, commit_failures=failures), 0.0) for name in asking}
    seen = view(asking, last=last)
    verdict = judge(View(beats=seen.beats, asking=asks, last=seen.last), RULES, 0.0, NEXT)
    assert isinstance(verdict, Quorum)
    assert verdict.id == expected


@pytest.mark.parametrize(
    ("steps", "highest", "good"),
    [
        ({"a": 0}, 0, True),  # the beginning
        ({"a": 0}, 1, False),  # a fresh group alone
        ({"a": 0, "b": 0}, 100, False),
        ({"a": 0, "b": 100}, 100, True),  # it heals from b
        ({"a": 100}, 100, True),  # it has been healed, or has loaded the newest checkpoint
        ({"a": 120}, 100, True),
        ({"a": 90}, 100, False),  # it has loaded an old checkpoint
        ({"a": 99}, 100, True),  # the group that committed step 100 alone has died then
        ({"a": 98}, 100, False),
        ({"a": 1}, 2, True),
    ],
)
def test_nobody_starts_a_new_history(steps: dict[str, int], highest: int, good: bool) -> None:
    asks = {name: Ask(member(name, step), 0.0) for name, step in steps.items()}
    seen = View(beats=dict.fromkeys(steps, 0.0), asking=asks, highest=highest)
    verdict = judge(seen, RULES, 0.0, NEXT)
    assert isinstance(verdict, Quorum) == good
    if isinstance(verdict, NotYet):
        assert verdict.poisoned
        assert f"step {highest}" in verdict.reason


def test_who_waits_in_vain_is_told_why() -> None:
    reasons = [
        judge(seen, Rules(2, 10.0, 5.0), 0.0, NEXT)
        for seen in (view("a"), view("ab", alive="cd"), view("abc", alive="d"))
    ]
    assert [r.reason for r in reasons if isinstance(r, NotYet)] == [
        "1 groups ask, 2 are needed (groups.min)",
        "2 groups ask, not more than half of the 4 that are alive",
        "3 groups ask, waiting for 1 more that are alive",
    ]
