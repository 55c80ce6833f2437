"""The Lighthouse's log tells a person what the controller has ordered."""

from __future__ import annotations

import pytest

from ftslurm.lighthouse import order_text
from ftslurm.protocol.messages import Evict, GroupAside, Member, NewHistory


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Member(2, 0, "n1:29500/store"), "group 2 attempt 0 may take part, its store is n1:29500/store"),
        (Evict(2, 0, "n1:29500/store"), "group 2 attempt 0 is over: the next quorums are formed without it"),
        (Evict(2, 1, finished=True), "group 2 attempt 1 has finished: the next quorums are formed without it"),
        (NewHistory(0), "all groups start over, from step 0"),
        (NewHistory(40), "all groups start over, from the checkpoint of step 40"),
    ],
)
def test_an_order_is_a_sentence(order: order_text.Order, said: str) -> None:
    assert order_text.order(order) == said


def test_a_group_that_is_set_aside_and_one_that_is_heard_again_are_sentences() -> None:
    aside = "group 1 attempt 0 has been silent for 2.1 s: quorums are formed without it for now"
    assert order_text.aside(GroupAside(1, 0, True, 2.1)) == aside
    assert (
        order_text.aside(GroupAside(1, 0, False, 4.0))
        == "group 1 attempt 0 is heard again after 4.0 s: it takes part again"
    )
