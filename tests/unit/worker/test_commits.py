"""A warning of commits that are no updates, and none for what training does otherwise."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from ftslurm.worker.commits import COMMITS, NOT_AVERAGED, NOT_CHANGED, Commits

Step = Callable[[int, torch.optim.Optimizer], None]  # what the script does after the commit of this number


class Kernel(torch.optim.SGD):
    """Changes its weights by itself, as kernels outside of torch do: their versions stay."""

    def step(self, _: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.detach().numpy()[...] += 1.0


class Half(torch.optim.SGD):
    """Takes every second step only, as the optimizers of frameworks that accumulate gradients."""

    calls = 0

    def step(self, _: None = None) -> None:  # type: ignore[override]
        self.calls += 1
        if self.calls % 2 == 0:
            super().step()


def train(
    step: Step,
    averages: Callable[[int], bool] = lambda _: True,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    commits: Callable[[int], bool] = lambda _: True,
    managers: int = 1,
    dtype: torch.dtype = torch.float32,
    steps: int = 40,
) -> list[str]:
    """Take steps as torchft's optimizer does, which commits first; return the warnings."""
    said = list[str]()
    watch = Commits(said.append)
    watch.install()
    weights = [torch.nn.Parameter(torch.ones(64, 64, dtype=dtype)) for _ in range(2)]
    weights[0].requires_grad = kind is not torch.optim.Adam  # one that is frozen comes first
    optimizer = kind(weights, lr=0.1)  # type: ignore[call-arg]
    several = [SimpleNamespace() for _ in range(managers)]
    for number in range(steps):
        for weight in weights:
            weight.grad = torch.ones_like(weight) if weight.requires_grad else None
        watch.step_begins()
        watch.averaged = averages(number)
        watch.has_voted(several[number % managers], commits(number))
        if commits(number):
            step(number, optimizer)
    return said


def always(_: int, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def warms_up(number: int, optimizer: torch.optim.Optimizer) -> None:
    """Begin with a learning rate of 0."""
    optimizer.param_groups[0]["lr"] = 0.0 if number < 5 else 0.1
    optimizer.step()


def rests(number: int, optimizer: torch.optim.Optimizer) -> None:
    """Have a learning rate of 0 after the first step."""
    optimizer.param_groups[0]["lr"] = torch.tensor(0.0) if number and number % 2 else 0.0 if number else 0.1
    optimizer.step()


def scales(number: int, optimizer: torch.optim.Optimizer) -> None:
    """Leave out steps as a gradient scaler does: some at the beginning, then a few."""
    if number >= 4 and number not in (7, 9):
        optimizer.step()


@pytest.mark.parametrize("step", [always, warms_up, rests, scales])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, Kernel])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nothing_is_said_of_a_training_as_it_is(
    step: Step, kind: type[torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    assert train(step, kind=kind, dtype=dtype) == []
    assert train(step, kind=kind, dtype=dtype, commits=lambda number: number % 3 > 0) == []


@pytest.mark.parametrize("every", [2, 4])
@pytest.mark.parametrize("skips", [0, 3])
def test_commits_of_micro_batches_are_told_once(every: int, skips: int) -> None:
    def accumulates(number: int, optimizer: torch.optim.Optimizer) -> None:
        if number >= skips and number % every == every - 1:
            optimizer.step()

    (said,) = train(accumulates)
    assert NOT_CHANGED in said
    (said,) = train(accumulates, averages=lambda number: number % every == every - 1)
    assert said.startswith("of the first commits, 3 ")


def test_an_optimizer_that_leaves_out_steps_by_itself_is_seen() -> None:
    (said,) = train(always, kind=Half)
    assert NOT_CHANGED in said


def test_commits_in_which_nothing_is_averaged_are_told() -> None:
    (said,) = train(always, averages=lambda number: number % 2 == 0)
    assert NOT_AVERAGED in said


def test_later_commits_and_those_of_several_managers_are_not_looked_at() -> None:
    assert train(always, averages=lambda number: number < COMMITS + 1) == []
    assert train(lambda number, optimizer: optimizer.step() if number % 2 else None, managers=2) == []


def test_what_cannot_be_read_is_no_error_of_the_script() -> None:
    watch = Commits(lambda text: pytest.fail(text))
    watch.install()
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    optimizer.step()
    del optimizer.param_groups[0]["params"]
    for _ in range(20):
        watch.has_voted(optimizer, True)
        watch.step_begins()
