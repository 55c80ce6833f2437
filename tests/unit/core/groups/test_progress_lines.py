"""The rate of progress lines: each report in small runs, about eight lines a second in large ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import said
from histories import with_units

from ftslurm.config.schema import Config
from ftslurm.core.rules import begin, decide
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol.records import JournalRecord

START = 1_790_000_000.0
Line = tuple[float, dict[str, object]]


def run_of(groups: int) -> tuple[RunState, Config]:
    """Return a run whose groups are about to commit their first step."""
    config = Config()
    config.groups.count, config.cluster.kind = groups, "local"
    state = begin(config)
    for unit in state.groups:
        state = with_units(
            state, replace(unit, phase=Phase.RUNNING, attempt=0, current=replace(unit.current, assigned=True))
        )
    return state, config


def report(state: RunState, group: int, step: int, committed: int = 5, gap_s: float | None = 0.2) -> ev.Heard:
    return said.progressed(state.groups[group].id, step, 1, len(state.groups), committed, 0, gap_s)


def train(groups: int, seconds: int, seed: int = 0) -> tuple[RunState, list[Line], Config]:
    """Let all groups make five steps a second, each reporting a second after its last report."""
    state, config = run_of(groups)
    dice, lines = random.Random(seed), list[Line]()
    for tenth in range(10 * seconds):
        second, now = tenth // 10, START + tenth / 10
        events = [
            report(state, group, 5 * second + 1, 5 * second + 5, 7.0 if (group, second) == (groups - 1, 3) else 0.2)
            for group in dice.sample(range(groups), groups)
            if group % 10 == tenth % 10  # each at its own time of the second
        ]
        if events:
            state, actions = decide(state, events, now, config)
            lines += [(now, dict(a.fields)) for a in actions if isinstance(a, JournalRecord) and a.event == "progress"]
    return state, lines, config


@pytest.mark.parametrize("groups", [1, 8])
def test_a_small_run_writes_down_what_each_group_tells(groups: int) -> None:
    _, lines, _ = train(groups, 20)
    assert len(lines) == groups * 20
    assert {line["committed"] for _, line in lines} == set(range(5, 101, 5))


@pytest.mark.parametrize("groups", [64, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_large_run_writes_eight_lines_a_second_and_some_group_is_always_up_to_date(groups: int) -> None:
    seconds = 3 * groups // 8
    _, lines, _ = train(groups, seconds)
    first, later = lines[:groups], lines[groups:]
    assert {line["group"] for _, line in first} == set(range(groups))  # each its first commit, at once
    assert len(later) <= 8 * seconds + groups
    for second in range(2, seconds):  # every reader sees the run's progress
        assert max(int(str(line["step"])) for time, line in lines if time <= START + second + 1) >= 5 * (second - 1) + 1


def test_what_is_left_out_is_added_to_the_next_line_and_told_before_the_attempt_ends() -> None:
    groups, seconds = 64, 30
    state, lines, config = train(groups, seconds)
    ended = START + seconds + 5.0
    for group in range(groups):
        state, actions = decide(state, [ev.Ended(state.groups[group].id, code=1)], ended, config)
        records = [a for a in actions if isinstance(a, JournalRecord)]
        mine = [record.event for record in records if record.fields.get("group") == group]
        assert "progress" not in mine[mine.index("step_exited") :]
        lines += [(ended, dict(record.fields)) for record in records if record.event == "progress"]
    for group in range(groups):
        written = [(time, line) for time, line in lines if line["group"] == group]
        assert max(float(str(line["gap_s"])) for _, line in written) == (7.0 if group == groups - 1 else 0.2)
        time, last = written[-1]
        assert (last["step"], last["committed"]) == (5 * (seconds - 1) + 1, 5 * seconds)
        assert START + seconds - 1 <= float(str(last.get("at", time))) < START + seconds


def test_a_group_that_tells_nothing_more_has_its_last_word_written_down_all_the_same() -> None:
    state, lines, config = train(64, 30)
    for second in range(9):
        state, actions = decide(state, [], START + 31.0 + second, config)
        lines += [(0.0, dict(a.fields)) for a in actions if isinstance(a, JournalRecord) and a.event == "progress"]
    newest = {line["group"]: line["step"] for _, line in lines}
    assert newest == dict.fromkeys(range(64), 5 * 29 + 1)
