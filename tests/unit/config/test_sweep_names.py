"""The runs of a sweep are named after what differs between them."""

from __future__ import annotations

import pytest

from ftslurm.config import compose, sweep_names
from ftslurm.config.validate import NAME


def test_a_run_of_a_sweep_has_its_overrides_in_its_name_which_other_settings_see() -> None:
    words = ["job=ddp", "job.args.note='a b/c','d'", "groups.count=2", "checkpoint.dir=/x/${run.name}"]
    runs, names = compose.sweep(words), ["ddp-note_a_b_c", "ddp-note_d"]
    assert [run.run.name for run in runs] == names
    assert [run.checkpoint.dir for run in runs] == [f"/x/{name}" for name in names]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["job.args.lr=0.1,0.2"], ["lr_0.1", "lr_0.2"]),
        (["++groups.max=9", "groups.count=2,3"], ["count_2", "count_3"]),
        (["job.args.lr=1,2", "groups.count=2,3"], [f"lr_{lr}-count_{n}" for lr in (1, 2) for n in (2, 3)]),
        (["+job.args.x=1,-1"], ["x_1", "x_-1"]),
        (["job.args.x=choice(5,7)", "groups.count=range(2,3)"], ["x_5", "x_7"]),
        (["groups.count=range(2,9,3)"], ["count_2", "count_5", "count_8"]),
        (["job.args.note='a b/c',d"], ["note_a_b_c", "note_d"]),
        (["+job.env.lr=1,2", "job.args.lr=3,4"], [f"lr_{env}-lr_{arg}" for env in (1, 2) for arg in (3, 4)]),
        (["job.args.lr=0.0123456789,1.23456789e-05"], ["lr_0.0123456789", "lr_1.23456789e-05"]),
        (["run.name=ddp-a,ddp-b", "groups.count=2"], ["a", "b"]),
    ],
)
def test_the_name_of_a_run_has_what_differs_between_the_runs(words: list[str], expected: list[str]) -> None:
    assert [run.run.name for run in compose.sweep(["job=ddp", *words])] == [f"ddp-{text}" for text in expected]


def test_presets_that_are_swept_name_their_jobs_once() -> None:
    configs = compose.sweep(["job=ddp,diloco"])
    assert [config.run.name for config in configs] == ["ddp", "diloco"]


def test_a_long_name_is_cut_and_stays_valid() -> None:
    assert NAME.fullmatch(sweep_names.joined("ddp", "note_" + "x" * 100))


def test_a_run_without_a_sweep_keeps_its_name() -> None:
    assert compose.compose(["job=ddp", "job.args.lr=0.1"]).run.name == "ddp"
