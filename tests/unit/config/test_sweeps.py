"""Sweeps that Hydra's plugins lead: the runs that Optuna asks for, and launchers, which are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftslurm.config import compose, sweep_names
from ftslurm.config.hydra_adapter import Value
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError, NotDone

JOB = (f"job.script={__file__}", "job.args.note='two words, and a comma'", "~faults", "groups.count=3")
OPTUNA = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=3")


class Square:
    """Runs whose value is (x - 3)^2, without running anything."""

    def __init__(self, fails: int | None = None) -> None:
        self.batches: list[list[Config]] = []
        self.fails, self.best = fails, ""

    def values(self, configs: Sequence[Config]) -> Sequence[Value]:
        first = sum(map(len, self.batches))
        self.batches.append(list(configs))
        return [
            NotDone(f"run {number} failed") if number == self.fails else (float(one.job.args["x"]) - 3) ** 2
            for number, one in enumerate(configs, first)
        ]

    def conclude(self, best: str) -> None:
        self.best = best


@pytest.mark.nightly  # needs hydra-optuna-sweeper
def test_optuna_gets_the_value_of_each_run_and_asks_for_the_next_ones() -> None:
    runs = Square()
    chosen = ("job.args.x=interval(0,5)", "job.args.deep=1,2")
    assert compose.compose([*JOB, *chosen, *OPTUNA], evaluation=runs, multirun=True) == []
    assert [len(batch) for batch in runs.batches] == [3, 3]
    configs = [one for batch in runs.batches for one in batch]
    assert {(one.groups.count, one.job.args["note"]) for one in configs} == {(3, "two words, and a comma")}
    assert {one.job.args["deep"] for one in configs} <= {"1", "2"}
    assert all(one.run.name.startswith(f"script-{number}-") for number, one in enumerate(configs))
    assert all("note" not in one.run.name for one in configs)
    least = min((float(one.job.args["x"]) - 3) ** 2 for one in configs)
    assert "job.args.x: " in runs.best  # named as the user does
    assert f"best_value: {least}" in runs.best


@pytest.mark.nightly  # needs hydra-optuna-sweeper
def test_a_sweeper_decides_what_a_failed_run_means() -> None:
    words = [*JOB, "job.args.x=interval(0,5)", *OPTUNA]
    with pytest.raises(NotDone, match="run 1 failed"):
        compose.compose(words, evaluation=Square(fails=1), multirun=True)
    runs = Square(fails=1)
    compose.compose([*words, "hydra.sweeper.max_failure_rate=0.5"], evaluation=runs, multirun=True)
    assert [len(batch) for batch in runs.batches] == [3, 3]


@pytest.mark.nightly  # needs hydra-optuna-sweeper
def test_a_run_that_a_sweeper_has_chosen_is_checked_as_any_other() -> None:
    with pytest.raises(ConfigError, match=r"groups\.min=[45] is above groups\.count=3"):
        compose.compose([*JOB, "groups.min=4,5", *OPTUNA], evaluation=Square(), multirun=True)
    words = [*JOB, "hydra.sweeper.params={groups.count: '1,2'}", *OPTUNA]
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params"):  # Hydra 1.3 raises an AttributeError here
        compose.compose(words, evaluation=Square(), multirun=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("hydra/launcher=submitit_slurm",), "ftslurm submits each run itself"),
        (("hydra/launcher=submitit_slurm", "-m", "groups.count=1,2"), "ftslurm submits each run itself"),
        pytest.param(
            ("hydra/sweeper=optuna", "-m", "groups.count=1,2"),
            "which runs it asks for depends on the values",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["launcher", "launcher of a sweep", "nothing is run"],
)
def test_what_hydra_would_do_beside_ftslurm_is_refused(words: Sequence[str], says: str) -> None:
    own = [word for word in words if word != "-m"]
    with pytest.raises(ConfigError, match=says):
        compose.compose([f"job.script={__file__}", *own], multirun="-m" in words)


def test_numbers_in_names_are_short() -> None:
    given = ["++groups.count=3", "job=ddp", "++job.args.lr=0.0123456789", "++job.args.x=1.23456789e-05", "~faults"]
    assert sweep_names.suffix(given, ["groups.count", "~faults"], 7) == "7-lr_0.0123456789-x_1.23456789e-05"


def test_a_sweep_without_a_combination_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^groups.count=range\(1,1\): there is no combination of these values"):
        compose.compose([JOB[0], "groups.count=range(1,1)"], multirun=True)
