"""Which buffers are averaged, and what their mean is, with modules, groups and participants drawn at random."""

from __future__ import annotations

import copy
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ftslurm.worker import buffers

AVERAGE = ("FTSLURM_BUFFERS", "average")


class Script:
    """The model of a group, and what torchft heals others with."""

    def __init__(self, shapes: list[tuple[int, ...]], kinds: list[torch.dtype], values: torch.Generator) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        for number, (shape, kind) in enumerate(zip(shapes, kinds, strict=True)):
            self.model.register_buffer(f"b{number}", torch.rand(shape, generator=values).to(kind))
        self.model.register_buffer("constant", torch.rand(5) / 3)
        self.model.register_buffer("elsewhere", torch.rand(1, generator=values), persistent=False)
        self.model = copy.deepcopy(self.model)  # modules that were made without a constructor
        self.quorum, self.reads = 0, 0

    def state(self) -> Any:
        self.reads += 1
        return {"model": self.model.state_dict(), "rng": torch.get_rng_state(), "loss": torch.rand(2)}

    def floats(self) -> dict[str, torch.Tensor]:
        state = self.model.state_dict()
        return {name: one for name, one in state.items() if one.is_floating_point() and not name.startswith("0.")}


def vote(scripts: list[Script], takes_part: list[bool], divisor: int) -> None:
    """Let groups vote on a step, and commit it. Who takes no part adds nothing, and torchft divides by `divisor`."""
    flats = list[torch.Tensor]()

    def manager(script: Script, number: int, total: torch.Tensor | None) -> Any:
        def allreduce(flat: torch.Tensor) -> Any:
            flats.append(flat.clone())
            if total is not None:
                flat.copy_(total)
            return SimpleNamespace(wait=bool)

        return SimpleManager(script, allreduce)

    for number, script in enumerate(scripts):  # what each puts in
        buffers.average(manager(script, number, None))
    total = sum(flat * part for flat, part in zip(flats, takes_part, strict=True)) / divisor
    for number, script in enumerate(scripts):
        for buffer, mean in buffers.average(manager(script, number, total)):  # type: ignore[arg-type]
            buffer.copy_(mean.view_as(buffer))


class SimpleManager:
    """As much of torchft's Manager as the average needs."""

    def __init__(self, script: Script, allreduce: Any) -> None:
        self._quorum_id, self._user_state_dicts = script.quorum, {"default": script.state}
        self.allreduce, self.wait_quorum = allreduce, bool


@pytest.mark.parametrize("seed", range(12))
def test_all_groups_get_the_mean_of_those_that_take_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*AVERAGE)
    draw, values = Random(seed), torch.Generator().manual_seed(seed)
    groups = draw.randint(1, 7)
    shapes = [tuple(draw.randint(0, 4) for _ in range(draw.randint(0, 3))) for _ in range(4)]
    kinds = [draw.choice([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64]) for _ in shapes]
    scripts = [Script(shapes, kinds, values) for _ in range(groups)]
    part = [draw.random() < 0.7 for _ in scripts]
    part[draw.randrange(groups)] = True
    before = [{name: one.clone() for name, one in script.model.state_dict().items()} for script in scripts]
    alone = [script.model.elsewhere.clone() for script in scripts]
    vote(scripts, part, draw.choice([sum(part), groups]))  # torchft's number is wrong in a step that all heal in
    constant = before[0]["constant"]
    for script, was, own in zip(scripts, before, alone, strict=True):
        for name, one in script.floats().items():
            inputs = [other[name].double() for other, took in zip(before, part, strict=True) if took]
            assert torch.allclose(one.double(), sum(inputs) / len(inputs), rtol=1e-2), name  # type: ignore[arg-type]
            assert torch.equal(one, scripts[0].model.state_dict()[name]), name
        assert torch.equal(script.model.constant, constant)  # to the bit
        assert torch.equal(script.model.elsewhere, own)  # torchft heals nobody with it
        for name, one in script.model.state_dict().items():
            if name.startswith("0.") or not one.is_floating_point():
                assert torch.equal(one, was[name])


def test_a_constant_stays_the_same_however_often_it_is_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*AVERAGE)
    scripts = [Script([], [], torch.Generator().manual_seed(n)) for n in range(3)]
    constant = scripts[0].model.constant.clone()
    for _ in range(50):
        vote(scripts, [True] * 3, 3)
    assert torch.equal(scripts[2].model.constant, constant)


def test_the_state_is_read_once_in_a_quorum_and_a_buffer_that_is_replaced_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(*AVERAGE)
    script = Script([], [], torch.Generator().manual_seed(0))
    manager = SimpleManager(script, lambda _: SimpleNamespace(wait=bool))
    for quorum in (1, 1, 1, 2):
        manager._quorum_id = quorum
        script.model.constant = torch.full((5,), float(quorum))
        means = dict(zip(buffers.of(manager), buffers.average(manager), strict=True))
        assert sorted(means) == [f"default.model.{name}" for name in ("1.running_mean", "1.running_var", "constant")]
        assert torch.equal(means["default.model.constant"][1], torch.full((5,), float(quorum), dtype=torch.float64))
    assert script.reads == 2


@pytest.mark.parametrize("word", ["report", "ignore", None])
def test_nothing_is_averaged_that_was_not_asked_for(
    word: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(AVERAGE[0], raising=False)
    if word is not None:
        monkeypatch.setenv(AVERAGE[0], word)
    script = Script([], [], torch.Generator())
    manager = SimpleManager(script, lambda _: pytest.fail("it is averaged"))
    assert [*buffers.average(manager)] == []
    monkeypatch.setenv(*AVERAGE)
    script.model = nn.Linear(2, 2)
    for _ in range(3):
        assert [*buffers.average(manager)] == []  # nothing to average
    assert capsys.readouterr().err.count("health.buffers=average: ") == 1
