"""The accounts of a run add up, for every journal; and they say where the time of known journals went."""

from __future__ import annotations

import random
from dataclasses import replace
from io import StringIO
from pathlib import Path

import example_journal as ex
import pytest
import random_journal
from folded import fold
from fuzz import numbers
from rich.console import Console

from ftslurm.monitor.status import RunStatus
from ftslurm.report.accounting import account
from ftslurm.report.history import PHASES, QUEUED, History
from ftslurm.report.history_fold import fold_history
from ftslurm.report.tables import render, who
from ftslurm.run.directory import RunDir
from ftslurm.run.run_reader import RunReader


def check_that_it_adds_up(history: History) -> None:
    for group in history.groups:
        for before, after in zip(group.spans, group.spans[1:], strict=False):
            assert before.end == after.begin
        assert all(span.seconds > 0 for span in group.spans)
        assert not group.spans or group.spans[-1].end == pytest.approx(history.end)
    accounts = account(history)
    lives = sum(group.spans[-1].end - group.spans[0].begin for group in history.groups if group.spans)
    assert accounts.total_s == pytest.approx(lives, abs=0.01)
    for split in (accounts.by_cause, accounts.by_phase, accounts.by_node, accounts.by_group):
        assert sum(one.seconds for one in split) == pytest.approx(accounts.lost_s, abs=0.01)
    assert {one.name for one in accounts.by_phase} <= set(PHASES)


def text_of(lines: list[ex.Line], submitted: float | None = None) -> list[str]:
    history, console = fold_history(lines, submitted), Console(file=StringIO(), width=80)
    console.print(render(fold(RunStatus(), *lines), history, account(history)))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("seed", numbers(10, 40))
def test_the_accounts_of_a_random_run_add_up(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    groups, failures = dice.choice([1, 2, 5, 20]), dice.choice([0.0, 0.05, 0.4])
    lines = list(random_journal.history(dice, groups, 600, failures))
    history = fold_history(RunReader(random_journal.write(RunDir(tmp_path / "run"), lines)).iter_new())
    check_that_it_adds_up(history)
    assert replace(history, failures=()) == replace(fold_history(lines), failures=())  # their steps the writer adds


@pytest.mark.parametrize("cut", range(0, 90, 3))
def test_the_accounts_add_up_after_every_line(cut: int) -> None:
    for lines in (ex.one_kill(), ex.lost_node(), ex.old(ex.one_kill())):
        check_that_it_adds_up(fold_history(lines[:cut], submitted=ex.START - 30, now=ex.START + 60))


def test_a_lighthouse_that_fails_is_told_and_is_no_failure_of_a_group() -> None:
    *lines, end = ex.one_kill()
    died = {**ex.exited(end["time"] - ex.START, 0), "unit": "lighthouse", "group": None}
    history = fold_history([*lines, died, end])
    assert [who(failure) for failure in history.failures] == ["group 1 attempt 0", "the Lighthouse"]
    accounts, without = account(history), account(fold_history(ex.one_kill()))
    assert (accounts.failures, accounts.mttf_s, accounts.by_cause) == (1, without.mttf_s, without.by_cause)


def test_a_kill_costs_the_time_until_the_first_step_of_the_next_attempt() -> None:
    accounts = account(fold_history(ex.one_kill()))
    by_cause = {one.name: one for one in accounts.by_cause}
    assert by_cause["killed"].seconds == pytest.approx(2.1 + ex.PHASES["detect"])  # type: ignore[operator]
    assert by_cause["killed"].failures == accounts.failures == 1
    assert {one.name: one.seconds for one in accounts.by_node}["n2"] == pytest.approx(by_cause["killed"].seconds)
    assert {one.name: one.seconds for one in accounts.by_phase}["import"] == pytest.approx(4 * 0.9)
    assert accounts.goodput == pytest.approx(accounts.trained_s / (accounts.trained_s + accounts.lost_s))
    assert {one.name: one.failures for one in accounts.by_node}["n2"] == 1


def test_the_time_before_a_lost_node_is_noticed_is_lost() -> None:
    history = fold_history(ex.lost_node())
    assert {one.name: one.seconds for one in account(history).by_phase}["detect"] == pytest.approx(11.2)


def test_a_group_that_hung_until_it_was_given_up_did_not_train_meanwhile() -> None:
    lines = [line for line in ex.one_kill() if line["time"] < ex.START + 15 or line.get("group") != 1]
    lines += [ex.exited(26, 1, cause="hang", node="n2", noticed=ex.START + 25.9, away_since=ex.START + 15)]
    lines += [ex.event(26, "group_given_up", group=1, reason="restart.max_per_group=0")]
    history = fold_history(sorted(lines, key=lambda line: line["time"]))
    check_that_it_adds_up(history)
    assert [(span.phase, span.cause, span.node) for span in history.groups[1].spans[-4:]] == [
        ("training", "", None),
        *((phase, "hang", "n2") for phase in ("detect", "end", "given_up")),
    ]
    assert history.groups[1].spans[-4].end == ex.START + 15


def test_a_group_is_away_from_its_death_until_it_is_back() -> None:
    (failure,) = fold_history(ex.lost_node()).failures
    assert failure.recovery_s == pytest.approx(11.5)
    assert failure.time - failure.died == pytest.approx(11.2)


def test_the_wait_for_the_first_nodes_is_no_lost_time() -> None:
    early = account(fold_history(ex.one_kill(), submitted=ex.START - 100))
    late = account(fold_history(ex.one_kill()))
    assert early.queued_s == pytest.approx(late.queued_s + 300)
    assert (early.lost_s, early.goodput) == (late.lost_s, late.goodput)
    assert early.effective is not None
    assert early.goodput is not None
    assert early.effective < early.goodput


def test_a_full_restart_undoes_the_steps_since_the_checkpoint() -> None:
    lines = [line for line in ex.one_kill() if line["time"] <= ex.START + 10]
    lines += [ex.exited(10, g) for g in range(3)]
    lines += [ex.event(11, "full_restart", reason="", step=36, checkpoint="c", checkpoint_step=20)]
    lines += [ex.launched(11, g, 1) for g in range(3)]
    lines += [ex.joined(13, g, 21, 1) for g in range(3)]
    lines += [ex.progress(20, g, 56, 1) for g in range(3)]
    history = fold_history(lines)
    check_that_it_adds_up(history)
    accounts = account(history)
    assert history.undone_steps == 11  # the last line before says step 31
    # step 21 was committed 7.1 s after the start; the fault came 0.03 s before it was noticed, at 10 s
    assert {one.name: one.seconds for one in accounts.by_phase}["undone"] == pytest.approx(3 * 2.9, abs=0.2)
    assert accounts.step_efficiency == 1


def test_each_line_counts_all_steps_of_its_attempt_so_far() -> None:
    lines = [*ex.one_kill(), ex.progress(30, 0, 200, committed=9, aborted=2), ex.progress(31, 0, 201, committed=10)]
    group = fold_history(lines).groups[0]
    assert (group.committed, group.aborted) == (10, 0)


def test_a_step_that_takes_long_is_a_stall_of_a_failure_that_is_near() -> None:
    lines = [*ex.one_kill(), ex.progress(16.4, 0, 63, gap_s=1.2), ex.progress(24.5, 2, 110, gap_s=3.2)]
    history = fold_history(sorted(lines, key=lambda line: line["time"]))
    check_that_it_adds_up(history)
    stalls = [
        (span.cause, round(span.seconds, 1))
        for group in history.groups
        for span in group.spans
        if span.phase == "stalled"
    ]
    assert stalls == [("killed", 1.0), ("slow_step", 3.0)]


def test_a_stall_before_its_failure_was_noticed_is_a_stall_of_that_failure() -> None:
    lines = [*ex.lost_node(), ex.progress(18.5, 0, 62, gap_s=3.2), ex.progress(22.5, 0, 63, gap_s=3.2)]
    history = fold_history(sorted([*lines, ex.progress(36, 0, 64, gap_s=8)], key=lambda line: line["time"]))
    check_that_it_adds_up(history)
    stalls = [
        (span.cause, span.node, round(span.seconds)) for span in history.groups[0].spans if span.phase == "stalled"
    ]
    assert stalls == [("node_lost", "n2", 3), ("node_lost", "n2", 3), ("slow_step", None, 8)]


def test_a_cancelled_lighthouse_is_told_with_the_stall_that_it_costs() -> None:
    lines, by = ex.one_kill(), "Slurm cancelled the step (scancel)"
    about = {"unit": "lighthouse", "group": None, "cause": "cancelled", "node": None, "error": by}
    lines += [{**ex.exited(20, 0), **about}, *ex.lighthouse(20, 1), ex.progress(23.5, 2, 110, gap_s=3.2)]
    history = fold_history(sorted(lines, key=lambda line: line["time"]))
    assert [(who(f), f.detail, f.moved, f.recovery_s) for f in history.failures][1:] == [
        ("the Lighthouse", f"ended from outside: {by}", True, pytest.approx(0.4))
    ]
    assert [span.cause for span in history.groups[2].spans if span.phase == "stalled"] == ["cancelled"]
    accounts = account(history)
    assert (accounts.failures, accounts.moves) == (1, 0), "of groups"


def test_a_group_that_commits_no_step_until_its_training_ends_does_not_train() -> None:
    lines = [line for line in ex.one_kill() if line["time"] <= ex.START + 14]
    history = fold_history(lines, now=ex.START + 60)
    check_that_it_adds_up(history)
    assert [(span.phase, span.cause) for span in history.groups[0].spans[-2:]] == [
        ("training", ""),
        ("stalled", "slow_step"),
    ]
    assert history.groups[0].spans[-1].seconds == pytest.approx(60 - 13.1, abs=1.5)


def test_a_requeued_run_waits_for_its_nodes_and_has_moved() -> None:
    lines = [line for line in ex.one_kill() if line["time"] <= ex.START + 10]
    lines += [ex.exited(10, g, cause="time_limit") for g in range(3)]
    lines += [ex.event(10.5, "run_requeued", outcome="requeued", reason="time limit", steps=36, restarts=0)]
    lines += [ex.started() | {"time": ex.START + 110}]
    lines += [ex.event(110, "allocation_granted", allocation="local", nodes=["n1", "n2", "n3"])]
    lines += [ex.launched(110, g, 1) for g in range(3)]
    lines += [ex.joined(113, g, 37, 1) for g in range(3)]
    history = fold_history(lines)
    check_that_it_adds_up(history)
    accounts = account(history)
    assert accounts.queued_s == pytest.approx(3 * (99.5 + 0.7))
    assert (accounts.failures, accounts.moves) == (0, 3)
    assert {one.name for one in accounts.by_cause} == {"first_start", "time_limit"}
    assert {one.name for one in accounts.by_node} == {""}, "a time limit is no fault of a node"


def test_groups_of_a_scaled_run_count_while_they_belong_to_it() -> None:
    lines = [line for line in ex.one_kill() if line["time"] <= ex.START + 10]
    lines += [ex.event(10, "scaled", groups=4, by=0), ex.launched(12, 3), ex.joined(15, 3, 37)]
    lines += [ex.event(20, "scaled", groups=2, by=0)]
    lines += [ex.exited(21, g, cause="cancelled") for g in (2, 3)]
    lines += [ex.progress(40, g, 70) for g in range(2)]
    history = fold_history(lines)
    check_that_it_adds_up(history)
    first = history.groups[3].spans[0]
    assert (first.phase, first.begin - ex.START) == (QUEUED, pytest.approx(10))
    assert history.groups[3].spans[-1].phase == "finished"
    again = fold_history(
        [*lines, ex.event(41, "scaled", groups=3, by=0), ex.launched(42, 2, 1), ex.joined(45, 2, 80, 1)],
        now=ex.START + 46,
    )
    assert (again.failures, account(again).moves, again.groups[2].spans[-1].phase) == ((), 0, "training")


def test_what_was_cancelled_before_the_run_was_stopped_is_told_and_only_the_rest_was_stopped() -> None:
    lines, by = [line for line in ex.one_kill() if line["time"] <= ex.START + 10], "Slurm cancelled the step (scancel)"
    lines += [ex.exited(10, 1, cause="cancelled", error=by)]
    lines += [ex.event(10, "restart_scheduled", group=1, attempt=1, due=ex.START + 10, reason="restart")]
    lines += [ex.progress(n, g, 40 + n, committed=40 + n) for n in range(11, 30) for g in (0, 2)]
    lines += [ex.exited(30, g, cause="cancelled", noticed=ex.START + 29.5) for g in (0, 2)]
    history = fold_history([*lines, ex.finished(31, "stopped", reason="stopped by ann")])
    check_that_it_adds_up(history)
    assert [(who(f), f.cause, f.back) for f in history.failures] == [("group 1 attempt 0", "cancelled", None)]
    by_cause = {one.name: one.seconds for one in account(history).by_cause}
    assert (by_cause["cancelled"], by_cause["stopped"]) == (pytest.approx(21), pytest.approx(2 * 1.5))


def test_a_run_that_never_trained_has_no_time_between_failures() -> None:
    lines = [ex.started(1), ex.launched(1, 0), ex.exited(9, 0), ex.finished(10, "failed", steps=0)]
    accounts = account(fold_history(lines))
    assert (accounts.failures, accounts.mttf_s, accounts.goodput) == (1, None, 0)


def test_the_steps_took_the_time_since_the_start_as_status_says() -> None:
    assert text_of(ex.one_kill(), submitted=ex.START - 100)[1] == "step 120 of 120 in 28 s"


def test_an_empty_journal_has_a_report() -> None:
    accounts = account(fold_history([]))
    assert (accounts.total_s, accounts.goodput, accounts.mttf_s) == (0, None, None)


def test_lines_of_other_versions_are_ignored() -> None:
    odd = [
        ex.event(5, "from_the_future", group=1),
        ex.event(6, "step_exited", group="x"),
        {"event": 3},
        ex.event(7, "progress"),
    ]
    assert account(fold_history([*ex.one_kill(), *odd])) == account(fold_history(ex.one_kill()))


def test_the_report_warns_of_groups_that_differ_without_a_majority() -> None:
    def differ(equal: int) -> ex.Line:
        fields = {"rank": 0, "groups": [0, 1], "nodes": ["n1", "n2"], "equal": equal, "reason": f"of {equal}"}
        return ex.event(5.3, "replicas_differ", step=5, **fields)

    text = text_of([*ex.one_kill(), differ(0), differ(2)])
    assert [line for line in text if line.startswith("warning")] == ["warning: of 0"]


def test_what_a_slow_group_cost_the_run_is_told_with_its_node_until_its_attempt_ends() -> None:
    def slow(time: float, group: int, slow: bool = True) -> ex.Line:
        times = {"own_s": 0.15, "others_s": 0.1, "step_s": 0.2}
        return ex.event(time, "group_slow", group=group, attempt=0, nodes=[f"n{group + 1}"], slow=slow, step=9, **times)

    lines = [*ex.one_kill(), slow(5.3, 1), slow(8, 2), slow(12, 2, slow=False), slow(20, 2)]
    found = fold_history(sorted(lines, key=lambda line: line["time"])).slow
    assert [(one.group, *one.nodes) for one in found] == [(1, "n2"), (2, "n3"), (2, "n3")]
    assert [one.end - ex.START for one in found] == pytest.approx([15.3, 12, 27.5])
    assert [one.lost_s for one in found] == pytest.approx([2.5, 1.0, 1.875])
