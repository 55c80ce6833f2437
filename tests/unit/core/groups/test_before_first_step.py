"""Which lines about the start of a group the core writes: few, and only if the start lasts."""

from __future__ import annotations

import said
from histories import granted, play, ready, stepped, store
from steps import A0, B0, LIGHT0, URL

from ftslurm.core.groups.reports import TOLD_S

UP = (1, said.lighthouse_up(LIGHT0, URL))


def told(*history: object) -> list[tuple[object, object, object]]:
    """Return group, stage and number of missing tasks of each line."""
    story = play(*history)  # type: ignore[arg-type]
    return [(e["group"], e["stage"], e.get("lacks", 0)) for e in story.records("step_starting")]


def test_a_start_that_is_fast_has_no_line() -> None:
    both = [event for step in (A0, B0) for event in (*ready(step), store(step), stepped(step, 1))]
    assert told((0, granted(3)), UP, (2, both), (60,)) == []


def test_a_slow_start_says_what_it_waits_for_and_each_change_once() -> None:
    hello = [said.hello(step, 0, f"n{n + 1}") for n, step in enumerate((A0, B0))]
    steps = [
        (TOLD_S,),
        (TOLD_S + 1, hello),
        *((n,) for n in range(10, 30)),
        (31, ready(A0)),
        (32, store(A0)),
        (36,),
        (40,),
    ]
    assert [line for line in told((0, granted(3)), UP, *steps) if line[0] == 0] == [
        (0, "launch", 1),
        (0, "import", 1),
        (0, "others", 0),  # group 1 still imports, and all begin together
    ]


def test_a_script_that_asks_for_no_quorum_is_told_until_its_first_step() -> None:
    begun = [(2, [*ready(A0), *ready(B0)]), (3, [store(A0), store(B0)])]
    history = [(0, granted(3)), UP, *begun, *((float(n),) for n in range(4, 30)), (30, stepped(A0, 1)), (40,), (50,)]
    assert [line for line in told(*history) if line[0] == 0] == [(0, "script", 0)]
    (line,) = [e for e in play(*history).records("step_starting") if e["group"] == 0]
    assert line["since"] == 3


def test_the_begin_of_each_script_has_a_line() -> None:
    story = play((0, granted(3)), UP, (2, [*ready(A0), *ready(B0)]), (3, [store(A0), store(B0)]))
    assert story.records("script_begun") == [
        {"unit": "group-0000", "group": 0, "attempt": 0},
        {"unit": "group-0001", "group": 1, "attempt": 0},
    ]
