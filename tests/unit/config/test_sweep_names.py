"""The runs of a sweep are named after what differs between them."""

from __future__ import annotations

import pytest

from ftslurm.config import compose, sweep_names
from ftslurm.config.schema import Config
from ftslurm.config.value_limits import NAME


def names(*words: str) -> list[str]:
    configs: list[Config] = compose.compose(["-m", "job=ddp", *words])
    return [config.run.name for config in configs]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["job.args.lr=0.1,0.2"], ["ddp-lr_0.1", "ddp-lr_0.2"]),
        (["job.args.lr=0.1", "groups.count=2,3"], ["ddp-count_2", "ddp-count_3"]),
        (["job.args.lr=1,2", "groups.count=2,3"], [f"ddp-lr_{lr}-count_{n}" for lr in (1, 2) for n in (2, 3)]),
        (["+job.args.x=1,-1"], ["ddp-x_1", "ddp-x_-1"]),
        (["job.name=a,b"], ["a", "b"]),
        (["run.name=a,b", "groups.count=2,3"], ["a-count_2", "a-count_3", "b-count_2", "b-count_3"]),
        (["job.args.lr=0.1"], ["ddp"]),
        (["job.args.note='a b/c','d'"], ["ddp-note_a_b_c", "ddp-note_d"]),
        (
            ["+job.env.lr=1,2", "job.args.lr=3,4"],
            [f"ddp-job.env.lr_{env}-job.args.lr_{arg}" for env in (1, 2) for arg in (3, 4)],
        ),
    ],
)
def test_a_run_of_a_sweep_has_its_overrides_in_its_name(words: list[str], expected: list[str]) -> None:
    assert names(*words) == expected


def test_presets_that_are_swept_name_their_jobs_once() -> None:
    configs = compose.compose(["-m", "job=ddp,diloco"])
    assert [config.run.name for config in configs] == ["ddp", "diloco"]


def test_other_settings_see_the_name_of_the_sweeps_run() -> None:
    words = ["-m", "job=ddp", "groups.count=2,3", "checkpoint.dir=/x/${run.name}"]
    assert [config.checkpoint.dir for config in compose.compose(words)] == ["/x/ddp-count_2", "/x/ddp-count_3"]


def test_a_long_name_is_cut_stays_valid_and_stays_different() -> None:
    found = [sweep_names.joined("ddp", "note_" + "x" * 100 + end) for end in "ab"]
    assert len(set(found)) == 2
    assert all(NAME.fullmatch(name) for name in found)


def test_a_run_without_a_sweep_keeps_its_name() -> None:
    (config,) = compose.compose(["job=ddp", "job.args.lr=0.1"])
    assert config.run.name == "ddp"
