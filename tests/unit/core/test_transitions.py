"""The table of phase changes in the docs: no other change happens, and some history makes each of the table."""

from __future__ import annotations

import re
from pathlib import Path

import phase_changes
import pytest
import said
from histories import RUNNING, STARTED, beats, config, finished, play, stepped, stop
from steps import A0, B0
from test_random_histories import live_through

from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase

SECTION = Path("docs/architecture.md").read_text().split("## Phases of a unit")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| ([A-Z]+) \| ([A-Z]+) \| (.+) \|$", SECTION, re.MULTILINE)
TABLE = {(Phase(start), Phase(end)) for start, end, _ in ROWS}


def test_random_histories_make_only_the_changes_of_the_table_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = phase_changes.record(monkeypatch)
    for seed in range(20):
        live_through(seed)
    assert seen <= TABLE
    play(*RUNNING, (21, finished(A0)), (21.5, ev.Ended(B0, code=1)))
    play(*STARTED[:-1], (3, finished(A0)))
    play(*STARTED[:-1], (3, ev.Ended(A0, code=1)))
    play(*STARTED[:-1], (3, ev.Ended(A0, code=1)), config=config(restart={"max_per_group": 0}))
    srun_hangs = (*RUNNING, *beats({A0: 30.0, B0: 60.0}, since=20.5), (31, said.task_done(A0, 0)))
    health = {"lost_after_s": 10.0}
    play(*srun_hangs, (100, ev.Ended(A0, code=137)), config=config({"orphan_after_s": 60.0}, health=health))
    left_early = (*RUNNING, (21, said.task_done(A0, 0, at=10), ev.Ended(A0, code=0)), (24, stepped(B0, 14)))
    play(*left_early)
    play(*left_early, config=config(restart={"max_per_group": 0}))
    play(*RUNNING, (21, finished(A0))).taken_over(22)  # the other one is adopted
    play(*RUNNING, (21, finished(A0)), (22, stop()), (23, ev.Ended(B0, 143))).taken_over(24, home="requeued")
    play(*RUNNING, (21, finished(A0))).taken_over(24, home="requeued")
    assert seen == TABLE


def test_the_docs_name_each_change_once_in_the_order_of_the_phases() -> None:
    order = list(Phase)
    starts = [order.index(Phase(start)) for start, _, _ in ROWS]
    assert starts == sorted(starts)
    assert len(ROWS) == len(TABLE)
