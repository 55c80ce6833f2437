"""Each cause through all who read the table: they must agree about what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import example_journal as ex
import pytest
from folded import fold

from ftslurm.config.schema import RestartConfig
from ftslurm.core.groups.placement import suspect
from ftslurm.core.groups.restart import GiveUp, RestartAt, judge
from ftslurm.core.jobs.queue import ORDERED
from ftslurm.core.state.model import Exit, Unit
from ftslurm.core.state.transitions import is_restart
from ftslurm.monitor.log_failure import last_failure
from ftslurm.monitor.log_files import Wanted
from ftslurm.monitor.sentences import describe
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol import kinds
from ftslurm.protocol.causes import ROWS, Again, Blame, Cause, cause_of
from ftslurm.report import tables
from ftslurm.report.accounting import account
from ftslurm.report.history_fold import fold_history
from ftslurm.run.directory import RunDir
from ftslurm.run.journal_lines import read

CAUSES = pytest.mark.parametrize("cause", Cause)
PAGE = Path(__file__).parents[3] / "docs/causes.md"


def journal(cause: Cause) -> list[ex.Line]:
    """Return a run in which group 1 ends for a cause and is launched again."""
    first = [ex.started(2), ex.launched(2, 0), ex.launched(2, 1), ex.joined(5, 0, 3), ex.joined(5, 1, 3)]
    return [*first, ex.exited(9, 1, cause=cause.value), *([] if cause is Cause.OK else [ex.launched(10, 1, 1)])]


def test_the_page_has_a_row_for_each_cause() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.+\|.+\|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [cause.value for cause in ROWS]
    assert set(ROWS) == set(Cause)


@CAUSES
def test_hooks_are_told_of_a_failure_or_of_an_end_in_order(cause: Cause) -> None:
    told = kinds.kind(read(ex.exited(9, 1, cause=cause.value)))
    assert told == ("group_failed" if cause.row.failure else "group_shut_down")


@CAUSES
def test_a_failure_costs_the_budget_and_nothing_else_does(cause: Cause) -> None:
    unsure = cause in (Cause.UNKNOWN, Cause.LEFT_ON_SIGTERM)  # Slurm may correct it: the next failure decides
    exits = [Exit(attempt, 10.0 + attempt, cause, ("n1",)) for attempt in range(2 + unsure)]
    assert not (unsure and isinstance(judge(exits[:2], RestartConfig(max_per_group=1), 60.0), GiveUp))
    given_up = isinstance(judge(exits, RestartConfig(max_per_group=1), 60.0), GiveUp)
    assert given_up == (cause.row.failure or cause.row.again is Again.NEVER)
    never = judge([Exit(0, 10.0, cause, ("n1",))], RestartConfig(max_per_group=0), 60.0)
    assert isinstance(never, RestartAt) == (cause.row.again is Again.AT_ONCE)


@CAUSES
def test_only_who_may_be_the_nodes_fault_makes_it_suspect(cause: Cause) -> None:
    twice = [Exit(n, 10.0 + n, cause, ("n1",), node="n1", error=str(n)) for n in range(2)]
    assert suspect(Unit("group-0001", 1, exits=tuple(twice)), (), 100.0) == (
        "n1" if cause.row.blame is Blame.IF_AGAIN else None
    )


@CAUSES
def test_a_restart_is_counted_after_a_failure_only(cause: Cause) -> None:
    lines = journal(cause)
    status = fold(RunStatus(), *lines)
    assert (status.restarts, status.groups[1].restarts) == (cause.row.failure, cause.row.failure)
    unit = Unit("group-0001", 1, attempt=0, exits=(Exit(0, 10.0, cause, ("n1",)),))
    assert is_restart(unit) == cause.row.failure


@CAUSES
def test_people_read_that_it_died_or_why_it_left(cause: Cause) -> None:
    line = ex.exited(9, 1, cause=cause.value)
    status = fold(RunStatus(), *[*journal(cause)[:5], line])
    said = describe(line, status)
    assert said is not None
    assert ("died" in said) == cause.row.failure == status.groups[1].down
    assert (cause.row.words if cause.row.failure else cause.row.orderly) in said
    assert tables.words_of(cause.value) == cause.row.words


@CAUSES
def test_report_and_logs_agree_on_failures(cause: Cause, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.events.write_text("".join(f"{json.dumps(line)}\n" for line in journal(cause)))
    found = last_failure(run, Wanted())
    assert (found is not None) == cause.row.failure
    lines = [*journal(cause), ex.joined(12, 1, 5, attempt=1)]
    moved = [failure.moved for failure in fold_history(lines).failures]
    assert moved == ([] if cause is Cause.OK else [not cause.row.failure])


GUESSES = [cause for cause in Cause if cause.row.with_job and cause is not Cause.NODE_LOST]


@pytest.mark.parametrize("cause", ORDERED)
@pytest.mark.parametrize("was", GUESSES)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_cause_that_was_corrected_counts_as_if_it_had_been_known(
    was: Cause, cause: Cause, goes_on: bool, tmp_path: Path
) -> None:
    first, later = journal(cause)[:5], [ex.launched(10, 1, 1), ex.joined(12, 1, 5, attempt=1)] if goes_on else []
    before = ex.exited(7, 0, cause="killed")  # a failure of another group
    known = [*first, before, ex.exited(9, 1, cause=cause.value), *later, ex.finished(20, "stopped")]
    words = {"was": was.value, "cause": cause.value, "reason": "Slurm says so"}
    correction = ex.event(9.5, "cause_corrected", group=1, attempt=0, **words)
    lines = [
        *first,
        before,
        ex.exited(9, 1, cause=was.value, node="n2"),
        correction,
        *later,
        ex.finished(20, "stopped"),
    ]
    one, other = fold(RunStatus(), *lines), fold(RunStatus(), *known)
    assert (one.restarts, one.recoveries, one.groups[1].again) == (
        other.restarts,
        other.recoveries,
        other.groups[1].again,
    )
    assert one.groups[1].last is not None
    assert one.groups[1].last.cause == cause.value
    mine, real = fold_history(lines), fold_history(known)
    assert account(mine) == account(real)
    assert [(f.cause, f.moved) for f in mine.failures] == [(f.cause, f.moved) for f in real.failures]
    said = describe(correction, one)
    assert said is not None
    assert cause.row.orderly in said
    run = RunDir(tmp_path)
    run.events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = last_failure(run, Wanted())
    assert found is not None
    assert found.step.group == 0


@pytest.mark.parametrize("name", ["", "cosmic_ray", "OK", "Killed", "no such cause", None])
def test_a_name_that_is_no_cause_is_unknown_and_never_in_order(name: str | None) -> None:
    assert cause_of(name) is Cause.UNKNOWN
    assert Cause.UNKNOWN.row.failure
