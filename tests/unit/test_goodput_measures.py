"""The measures of benchmarks/goodput.py, from lines of trainings whose numbers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from goodput_measures import Commit, Kill, Measures, Window, measure, quantile, steps_of

QUIET, FAULTS = Window(0.0, 10.0), Window(10.0, 20.0)


def run(
    begin: float, steps: range, *, replicas: tuple[int, ...] = (0, 1), lineage: int = 1, pids: int = 100
) -> list[Commit]:
    """Lines of replicas that commit a step every second, each a little after the one before it, 8 samples a replica."""
    there = len(replicas)
    return [
        Commit(begin + number + 0.01 * replica, replica, pids + replica, step, lineage, there, 8 * there)
        for number, step in enumerate(steps)
        for replica in replicas
    ]


def measured(commits: list[Commit], *kills: Kill) -> Measures:
    return measure(commits, kills, 2, QUIET, FAULTS)


def test_without_faults_everything_is_one() -> None:
    got = measured(run(0.5, range(1, 21)))
    assert (got.committed_steps, got.undone_steps, got.kills) == (10, 0, 0)
    assert [got.step_efficiency, got.participation, got.goodput] == [pytest.approx(1.0)] * 3
    assert got.longest_pause_s == pytest.approx(1.0)


def test_a_step_that_several_processes_report_is_one_step_at_the_time_of_the_first() -> None:
    steps = steps_of(run(5.0, range(1, 4)))
    assert [step.time for step in steps] == [5.0, 6.0, 7.0]
    assert [step.total_steps for step in steps] == [1, 2, 3]
    assert [step.total_samples for step in steps] == [16, 32, 48]


def test_a_group_that_is_away_costs_participation_and_its_samples_but_no_steps() -> None:
    away = run(0.5, range(1, 11)) + run(10.5, range(11, 16), replicas=(0,)) + run(15.5, range(16, 21))
    got = measured(away)
    assert got.step_efficiency == pytest.approx(1.0)
    assert got.participation == pytest.approx(0.75)
    assert got.goodput == pytest.approx(0.75)


def test_a_pause_costs_steps() -> None:
    got = measured(run(0.5, range(1, 13)) + run(16.5, range(13, 17)))
    assert got.committed_steps == 6
    assert got.step_efficiency == pytest.approx(0.6)
    assert got.longest_pause_s == pytest.approx(5.0)


def test_steps_above_a_checkpoint_that_a_job_goes_back_to_are_undone() -> None:
    """It commits 11 to 15, dies, resumes from a checkpoint at 12 and commits 13 to 15 again."""
    got = measured(run(0.5, range(1, 16)) + run(17.5, range(13, 16), lineage=2, pids=200))
    assert got.committed_steps == 8
    assert got.undone_steps == 3
    assert got.step_efficiency == pytest.approx(0.8)
    assert got.goodput == pytest.approx(0.5)


def test_going_back_by_one_step_is_seen() -> None:
    assert measured(run(0.5, range(1, 16)) + run(16.5, range(15, 17), lineage=2)).undone_steps == 1


def test_a_training_that_starts_from_nothing_again_has_lost_what_was_before_the_window_too() -> None:
    got = measured(run(0.5, range(1, 16)) + run(17.5, range(1, 3), lineage=2))
    assert got.undone_steps == 15
    assert got.goodput == pytest.approx(-0.8)


def test_of_two_lineages_beside_each_other_the_one_that_lasts_counts() -> None:
    lone = run(12.2, range(3, 5), replicas=(1,), lineage=2)
    got = measured(run(0.5, range(1, 21)) + lone)
    assert got.committed_steps == 12
    assert got.undone_steps == 2


def test_a_training_that_is_dead_has_achieved_nothing() -> None:
    got = measured(run(0.5, range(1, 11)), Kill(10.0, 1, 101))
    assert (got.committed_steps, got.step_efficiency, got.goodput, got.participation) == (0, 0.0, 0.0, None)
    assert got.longest_pause_s == pytest.approx(10.5)
    assert (got.recoveries_s, got.not_back) == ((), 1)


def test_recovery_ends_with_the_first_step_of_another_process_of_that_replica() -> None:
    commits = run(0.5, range(1, 21), replicas=(0,))
    dying = replace(commits[0], replica=1, pid=7, time=12.01)  # its last line, a moment after the kill
    back = replace(commits[0], replica=1, pid=8, time=15.0)
    got = measured([*commits, dying, back], Kill(12.0, 1, 7), Kill(18.0, 0, 100))
    assert got.recoveries_s == (pytest.approx(3.0),)
    assert (got.kills, got.not_back) == (2, 1)


def test_a_quiet_window_without_steps_is_no_measure() -> None:
    with pytest.raises(ValueError, match="nothing to compare with"):
        measured(run(10.5, range(1, 5)))


def test_quantiles_are_values_that_were_measured() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.95)] == [1.0, 2.0, 3.0]
    assert quantile([float(n) for n in range(1, 21)], 0.95) == 19.0
