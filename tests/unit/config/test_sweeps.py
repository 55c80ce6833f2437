"""Sweeps: what Hydra would do beside ftslurm is refused."""

from __future__ import annotations

import pytest

from ftslurm.config import compose
from ftslurm.errors import ConfigError

JOB = f"job.script={__file__}"


@pytest.mark.parametrize(
    "word",
    [
        *("hydra/launcher=submitit_slurm", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "~hydra/launcher"),
        "hydra.searchpath=[x]",
    ],
)
def test_launchers_and_sweepers_of_hydra_are_refused(word: str) -> None:
    for composed in (compose.compose, compose.sweep):
        with pytest.raises(ConfigError, match=r"Hydra only composes presets here"):
            composed([JOB, word])


@pytest.mark.parametrize(
    "text",
    [
        *("interval(0,1)", "tag(log,interval(1e-5,1e-2))", "glob(*)", "sort(2,1)", "shuffle(range(1,3))"),
        *("range(0,1,0.1)", "range(a)", "range()", "range(1,2,0)", "range(1,2,3,4)"),
    ],
)
def test_values_that_are_not_known_before_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^job\.args\.x=.*: write the values, as in job\.args\.x=1,2, or whole numbers"
    ):
        compose.sweep([JOB, f"job.args.x={text}"])
    assert compose.sweep([JOB, f"job.args.x='{text}'"])[0].job.args == {"x": text}
    assert compose.compose([JOB, f"job.args.x={text}"]).job.args == {"x": text}


def test_a_sweep_without_a_combination_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"groups.count=range\(1,1\): there is no combination of these values"):
        compose.sweep([JOB, "groups.count=range(1,1)"])
