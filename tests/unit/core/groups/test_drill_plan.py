"""Drills: planned faults have their step, random faults are the same for the same seed."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest

from ftslurm.config.schema import Config, Fault, RandomFaults
from ftslurm.core.groups.fault_drills import Drill, draw, plan

LITERAL = [
    (23.478891, "kill", 1, 0),
    (69.535878, "term", 0, 2),
    (71.82888, "term", 0, 0),
    (104.981844, "stop", 0, 0),
]


def config(groups: int = 3, nodes: int = 2, workers: int = 2, total_steps: int | None = None, **faults: Any) -> Config:
    made = Config()
    made.groups.count, made.groups.nodes, made.groups.workers = groups, nodes, workers
    made.job.total_steps = total_steps
    for name, value in faults.items():
        setattr(made.faults, name, value)
    return made


def drawn(settings: Config, count: int) -> list[Drill]:
    drills = [draw(settings, index) for index in range(count)]
    return [drill for drill in drills if drill is not None]


@pytest.mark.parametrize(
    ("at", "total_steps", "step"),
    [
        (1, None, 1),
        (50, None, 50),
        (50.5, 100, 51),
        (0.5, 120, 60),
        (0.5, 121, 61),
        (0.07, 100, 7),  # not 8: 0.07 * 100 is 7.000000000000001
        (0.001, 100, 1),
        (0.999, 100, 100),
    ],
)
def test_a_planned_fault_has_its_step(at: float, total_steps: int | None, step: int) -> None:
    fault = Fault(kind="term", group=1, at=at, rank=3)
    assert plan(config(total_steps=total_steps, plan=[fault])) == (Drill(step, "term", 1, 3),)


def test_planned_faults_keep_their_order_which_is_how_they_are_told_apart() -> None:
    faults = [Fault(group=g, at=at) for g, at in ((2, 9), (0, 3), (2, 9))]
    assert [(p.group, p.at) for p in plan(config(plan=faults))] == [(2, 9), (0, 3), (2, 9)]


def test_the_same_seed_draws_the_same_stream_on_every_python() -> None:
    """These numbers must never change: a drill is repeated by its seed."""
    first = drawn(config(random=RandomFaults(mean_s=60.0, kinds=["kill", "term", "stop"], seed=7)), 4)
    assert [(round(d.at, 6), d.kind, d.group, d.rank) for d in first] == LITERAL


def test_another_seed_draws_another_stream() -> None:
    one, two = (drawn(config(random=RandomFaults(mean_s=60.0, seed=seed)), 5) for seed in (0, 1))
    assert all(a.at != b.at for a, b in zip(one, two, strict=True))


def test_the_mean_only_stretches_time_and_the_kinds_only_name() -> None:
    one = drawn(config(random=RandomFaults(mean_s=1.0, kinds=["kill", "stop"])), 50)
    two = drawn(config(random=RandomFaults(mean_s=60.0, kinds=["term", "node"])), 50)
    assert [d.at * 60 for d in one] == pytest.approx([d.at for d in two])
    assert [(d.group, d.rank) for d in one] == [(d.group, d.rank) for d in two]


def test_asking_again_or_out_of_order_gives_the_same() -> None:
    settings = config(random=RandomFaults(mean_s=5.0, seed=11))
    last = draw(settings, 30)
    assert drawn(settings, 31)[-1] == last == draw(config(random=RandomFaults(mean_s=5.0, seed=11)), 30)


def test_times_are_exponential_and_everything_else_uniform() -> None:
    kinds = ["kill", "term", "stop", "lighthouse"]
    drills = drawn(config(random=RandomFaults(mean_s=60.0, kinds=kinds, seed=3)), 6000)
    gaps = [after.at - before.at for before, after in pairwise(drills)]
    assert min(gaps) > 0
    assert mean(gaps) == pytest.approx(60, rel=0.06)
    assert sum(gap > 60 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.03)  # 1/e
    for counts in (Counter(getattr(d, name) for d in drills) for name in ("kind", "group", "rank")):
        assert all(n == pytest.approx(len(drills) / len(counts), rel=0.12) for n in counts.values())
    assert {d.kind for d in drills} == set(kinds)
    assert {d.group for d in drills} == {0, 1, 2}
    assert {d.rank for d in drills} == {0, 1, 2, 3}


def test_without_a_mean_there_are_no_random_faults() -> None:
    assert drawn(config(), 3) == []


def test_thousands_cost_nothing_to_speak_of() -> None:
    settings = config(random=RandomFaults(mean_s=1.0, seed=99))
    begin = time.process_time()
    drawn(settings, 20_000)
    assert time.process_time() - begin < 2.0
