"""The runs of a sweep are named after what differs between them."""

from __future__ import annotations

import pytest

from ftslurm.config import compose, sweep_names
from ftslurm.config.validate import NAME


def test_a_run_of_a_sweep_has_its_overrides_in_its_name_which_other_settings_see() -> None:
    words = ["job=ddp", "job.args.note='a b/c','d'", "groups.count=2", "checkpoint.dir=/x/${run.name}"]
    runs, names = compose.compose(words, multirun=True), ["ddp-note_a_b_c", "ddp-note_d"]
    assert [run.run.name for run in runs] == names
    assert [run.checkpoint.dir for run in runs] == [f"/x/{name}" for name in names]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ([["job.args.lr=0.1"], ["job.args.lr=0.2"]], ["lr_0.1", "lr_0.2"]),
        (
            [["++groups.max=9", "groups.count=2"], ["++groups.max=9", "groups.count=3"]],
            ["count_2", "count_3"],
        ),
        (
            [[f"job.args.lr={lr}", f"groups.count={n}"] for lr in (1, 2) for n in (2, 3)],
            [f"lr_{lr}-count_{n}" for lr in (1, 2) for n in (2, 3)],
        ),
        ([["+job.args.x=1"], ["+job.args.x=-1"]], ["x_1", "x_-1"]),
        ([["job.args.note='a b/c'"], ["job.args.note=d"]], ["note_a_b_c", "note_d"]),
        (
            [[f"+job.env.lr={env}", f"job.args.lr={arg}"] for env in (1, 2) for arg in (3, 4)],
            [f"lr_{env}-lr_{arg}" for env in (1, 2) for arg in (3, 4)],
        ),
        ([["++groups.max=9"]], [""]),
    ],
)
def test_a_suffix_has_what_differs_between_the_runs(sweep: list[list[str]], expected: list[str]) -> None:
    assert [
        sweep_names.suffix(["job=ddp", "~faults", *given], ("~faults", "groups.max")) for given in sweep
    ] == expected


@pytest.mark.parametrize("key", ["run.name", "job"])
def test_the_name_of_run_or_job_is_not_in_the_suffix(key: str) -> None:
    sweep = [[f"{key}={name}", f"groups.count={n}"] for name in "ab" for n in (2, 3)]
    assert [sweep_names.suffix(given, ()) for given in sweep] == ["count_2", "count_3"] * 2


def test_presets_that_are_swept_name_their_jobs_once() -> None:
    configs = compose.compose(["job=ddp,diloco"], multirun=True)
    assert [config.run.name for config in configs] == ["ddp", "diloco"]


def test_a_long_name_is_cut_and_stays_valid() -> None:
    assert NAME.fullmatch(sweep_names.joined("ddp", "note_" + "x" * 100))


def test_a_run_without_a_sweep_keeps_its_name() -> None:
    (config,) = compose.compose(["job=ddp", "job.args.lr=0.1"])
    assert config.run.name == "ddp"
