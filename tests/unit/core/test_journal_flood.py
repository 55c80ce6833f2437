"""What a step says again and again does not fill the journal, whatever it is."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from histories import RUNNING, config, play
from steps import B0, LIGHT0

from ftslurm.core.reduce import LINES_AT_ONCE, LINES_PER_S
from ftslurm.core.rules import decide
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import StepId
from ftslurm.protocol import messages as msg
from ftslurm.protocol.records import JournalRecord
from ftslurm.protocol.stages import Stage

OF_ITS_OWN = (msg.Alive, msg.Failed)  # events of their own: a heartbeat has no record, a failure ends the attempt
KINDS = [
    (LIGHT0 if issubclass(kind, msg.LighthouseReport) else B0, kind)
    for kind in msg.Report.known.values()
    if kind not in OF_ITS_OWN
]


def value(name: str, kind: Any, number: int) -> Any:
    """Return what a field may hold; another value for each number, where it can be."""
    fixed: dict[str, Any] = {
        "task": 0,
        "group": 1,
        "attempt": 0,
        "store": ("n1", 1),
        "members": (0, 1),
        "steps": (7, 7),
    }
    if name in fixed:
        return fixed[name]
    choices = {bool: number % 2 == 0, Stage: Stage.COMPUTING, int: number + 1, float: 0.1 + number}
    choices |= {str: f"http://n{number}:1", tuple: ()}
    types = {kind, get_origin(kind), *get_args(kind)}
    return next(made for known, made in choices.items() if known in types)


def made(kind: type[msg.Message], number: int) -> msg.Message:
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: value(name, hints[name], number) for name in names})


@pytest.mark.parametrize("lighthouse", ["ftslurm", pytest.param("none", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("step", "kind"), KINDS, ids=lambda one: getattr(one, "__name__", str(one)))
def test_ten_thousand_messages_of_any_kind_are_some_hundred_lines(
    step: StepId, kind: type[msg.Message], lighthouse: str
) -> None:
    settings = config(lighthouse={"kind": lighthouse})
    state, lines = play(*RUNNING, config=settings).state, 0
    for second in range(10):  # each twice, most of them different
        said = [made(kind, number // 2) for number in range(second * 1000, second * 1000 + 1000)]
        state, actions = decide(state, [ev.Heard(step, one) for one in said], 41.0 + second, settings)  # type: ignore[arg-type]
        lines += sum(isinstance(action, JournalRecord) for action in actions)
    assert lines <= LINES_AT_ONCE + 10 * LINES_PER_S + 10


def test_what_is_said_at_its_rate_is_all_written_down_and_a_flood_of_other_words_hides_nothing() -> None:
    story = play(*RUNNING)
    for second in range(300):
        stacks = msg.StacksTaken(f"c{second}", "file")
        progress = msg.Progress(100 + second, 1, 2, 1, 0, 0, 0.1)
        story.turn(41.0 + second, [ev.Heard(B0, stacks)] * 20 + [ev.Heard(B0, progress)])
    assert len(story.records("progress", since=41)) == 300
    assert LINES_AT_ONCE <= len(story.records("stacks_taken")) <= LINES_AT_ONCE + 301 * LINES_PER_S
    assert [record["text"] for record in story.records("warning")] == [
        "group-0001 sends so many messages (stacks) that not all are in the journal"
    ]
