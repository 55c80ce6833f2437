"""The simulation of failures agrees with what can be computed by hand, and loses no time in its accounts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st
from simulation import DAY_S, Failure, Kind, Loss, Outcome, Scene, Strategy, failures, simulate

CALM = Scene(
    groups=10, nodes=1, gpus=8, gpu_mttf_h=800.0, process_share=1.0, node_share=0.0, step_s=0.0, spare_nodes=0, days=400
)
COLD = Strategy(
    "cold", detect_s=1.0, detect_node_s=10.0, again_s=0.0, start_s=599.0, pause_s=0.0, pause_node_s=0.0, join_s=0.0
)
WHOLE = replace(COLD, name="whole", whole_job=True)


def run(scene: Scene, strategy: Strategy, seed: int = 1) -> Outcome:
    return simulate(scene, strategy, list(failures(scene, seed)))


def test_nothing_is_lost_without_failures() -> None:
    assert simulate(CALM, COLD, []).kept == pytest.approx(1.0)


def test_failures_come_at_the_rate_of_the_scene() -> None:
    expected = CALM.failures_per_s * CALM.seconds
    assert len(list(failures(CALM, 1))) == pytest.approx(expected, rel=0.1)


def test_the_same_seed_gives_the_same_failures() -> None:
    assert list(failures(CALM, 3)) == list(failures(CALM, 3)) != list(failures(CALM, 4))


def test_participation_is_the_availability_of_one_group() -> None:
    """A group is up for 1/r on average, and a start of D that each failure begins again takes (exp(rD) - 1) / r."""
    rate = CALM.failures_per_s / CALM.groups
    assert run(CALM, COLD).kept == pytest.approx(math.exp(-rate * 600.0), rel=0.005)


def test_a_whole_job_follows_dalys_formula_for_restarts_from_checkpoints() -> None:
    """Daly 2006: T between two checkpoints takes M exp(R/M) (exp(T/M) - 1), M the mean time between failures."""
    mean, every = 1.0 / CALM.failures_per_s, CALM.checkpoint_every_s
    expected = every / (mean * math.exp(600.0 / mean) * (math.exp(every / mean) - 1.0))
    assert run(CALM, WHOLE).kept == pytest.approx(expected, rel=0.02)


def test_checkpoints_cost_their_share() -> None:
    scene = replace(CALM, checkpoint_every_s=900.0, checkpoint_cost_s=100.0)
    assert simulate(scene, COLD, []).lost[Loss.CHECKPOINT] == pytest.approx(0.1)


def test_survivors_pay_the_spoiled_step_and_both_pauses_for_each_failure() -> None:
    strategy = replace(COLD, pause_s=5.0, join_s=2.0)
    outcome = simulate(replace(CALM, step_s=3.0, days=1.0), strategy, [Failure(1000.0, 0.0, Kind.PROCESS, 0.0)])
    assert outcome.lost[Loss.PAUSED] * DAY_S == pytest.approx(5.0 * 0.9)
    assert outcome.lost[Loss.SPOILED] * DAY_S == pytest.approx(3.0 * 0.9)
    assert outcome.lost[Loss.JOINING] * DAY_S == pytest.approx(2.0)
    assert outcome.lost[Loss.RESTARTING] * DAY_S == pytest.approx(600.0 * 0.1)
    assert outcome.lost[Loss.UNDONE] == 0.0


def test_the_loss_of_the_last_group_undoes_the_work_since_the_checkpoint() -> None:
    scene = replace(CALM, groups=1, days=1.0)
    outcome = simulate(scene, replace(COLD, restore_s=100.0), [Failure(2500.0, 0.0, Kind.PROCESS, 0.0)])
    assert outcome.lost[Loss.UNDONE] * DAY_S == pytest.approx(700.0)
    assert outcome.lost[Loss.RESTARTING] * DAY_S == pytest.approx(700.0)
    assert outcome.reverted == 1


def test_a_group_without_a_spare_node_waits_for_the_repair() -> None:
    scene, failure = replace(CALM, days=1.0), Failure(0.0, 0.0, Kind.DEVICE, 7200.0)
    waiting = simulate(scene, COLD, [failure])
    assert waiting.lost[Loss.NO_NODE] * DAY_S == pytest.approx(7201.0 * 0.1)
    assert waiting.lost[Loss.RESTARTING] * DAY_S == pytest.approx(599.0 * 0.1)
    assert simulate(replace(scene, spare_nodes=1), COLD, [failure]).lost[Loss.NO_NODE] == 0.0


def test_a_standby_shortens_the_restart_and_is_made_again() -> None:
    scene = replace(CALM, spare_nodes=1, days=1.0)
    warm = replace(COLD, standbys=1, warm_s=9.0)
    at = [Failure(when, 0.0, Kind.PROCESS, 0.0) for when in (1000.0, 1100.0, 5000.0)]
    outcome = simulate(scene, warm, at)
    assert outcome.standbys_taken == 2, "the second failure comes before the next standby is warm"
    assert outcome.lost[Loss.RESTARTING] * DAY_S == pytest.approx((10.0 + 600.0 + 10.0) * 0.1)


def test_a_whole_job_with_a_spare_node_does_not_wait_for_the_repair() -> None:
    scene, failure = replace(CALM, days=1.0), Failure(100.0, 0.5, Kind.NODE, 7200.0)
    assert simulate(scene, WHOLE, [failure]).lost[Loss.NO_NODE] > 0.05
    outcome = simulate(replace(scene, spare_nodes=1), WHOLE, [failure])
    assert outcome.lost[Loss.NO_NODE] == 0.0
    assert outcome.lost[Loss.RESTARTING] * DAY_S == pytest.approx(609.0)


@tried(60)
@given(
    seed=st.integers(0, 1000),
    groups=st.integers(1, 6),
    nodes=st.integers(1, 3),
    spares=st.integers(0, 4),
    standbys=st.integers(0, 2),
    mttf=st.floats(5.0, 500.0),
    whole=st.booleans(),
    cost=st.sampled_from([0.0, 60.0]),
)
def test_all_time_is_accounted_for(
    seed: int, groups: int, nodes: int, spares: int, standbys: int, mttf: float, whole: bool, cost: float
) -> None:
    scene = Scene(groups, nodes, 8, mttf, repair_h=1.0, spare_nodes=spares, checkpoint_cost_s=cost, days=2.0)
    strategy = replace(COLD, pause_s=5.0, pause_node_s=30.0, join_s=20.0, standbys=standbys, whole_job=whole)
    outcome = run(scene, strategy, seed)
    assert outcome.kept + sum(outcome.lost.values()) == pytest.approx(1.0)
    assert min(outcome.kept, outcome.participation, *outcome.lost.values()) >= -1e-9
    assert outcome.participation <= 1.0 + 1e-9
