"""When a worker takes the digest of its state, and that nothing changes the state meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from devices import Devices
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft_managers import run_manager

from ftslurm.protocol.position import Position
from ftslurm.worker import comparison, digest
from ftslurm.worker.commits import Commits
from ftslurm.worker.comparison import Comparison


class Training:
    """A model with torchft's Manager as far as the comparison sees it: no network, and the test says what commits."""

    def __init__(self, every: int | None = 2, parts: tuple[str, ...] = (), size: int = 8) -> None:
        class Manager:
            _step, _client, _quorum_future, _healing, _pending_state_dict = 0, None, None, False, None
            _pg, _use_async_quorum, _quorum_id = None, False, 0

            def __init__(self) -> None:
                self._user_state_dicts = {"default": lambda: training.state()}
                self._load_state_dict_fns = dict[str, Callable[[Any], None]]()

            def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any]) -> None:
                self._load_state_dict_fns[key], self._user_state_dicts[key] = load, save

            def current_step(self) -> int:
                return self._step

            def allreduce(self, tensor: torch.Tensor, **_: bool) -> Any:
                tensor.fill_(0.5)  # the average of all groups, whatever this one puts in
                return SimpleNamespace(wait=bool)

            def start_quorum(self, heal_to: int | None = None) -> None:
                if heal_to is not None:
                    self._step = heal_to
                    self._apply_pending_state_dict()

            def _apply_pending_state_dict(self) -> None:
                with torch.no_grad():
                    training.weight.fill_(7.0)

            def should_commit(self, commit: bool = True) -> bool:
                self._step += commit
                return commit

            def disallow_state_dict_read(self) -> None:
                pass

            allow_state_dict_read = disallow_state_dict_read

        training = self
        self.reports, self.warnings, self.position = list[tuple[Any, ...]](), list[str](), Position()
        self.compared = Comparison(self.warnings.append, self.position, every, parts)
        self.compared.report = lambda *told: self.reports.append(told)
        progress = SimpleNamespace(seeks_quorum=bool, votes=bool, has_voted=lambda *_: None, reduces=lambda *_: None)
        watchers = SimpleNamespace(progress=progress, compared=self.compared, unhealed=SimpleNamespace(), beside=None)
        watchers.quorums, watchers.commits = SimpleNamespace(cover=bool), Commits(print)
        self.kind = run_manager(SimpleNamespace(Manager=Manager), watchers)
        self.weight = torch.nn.Parameter(torch.arange(float(size)))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.5, momentum=0.9)
        self.manager = self.kind()

    def state(self) -> Any:
        return {"model": {"weight": self.weight.detach()}, "optimizer": self.optimizer.state_dict()}

    def module(self) -> torch.nn.Module:
        module = torch.nn.Module()
        module.weight = self.weight
        return module

    def step(self, commit: bool = True, **quorum: Any) -> None:
        self.manager.start_quorum(**quorum)
        self.weight.grad = torch.ones_like(self.weight)
        if self.manager.should_commit(commit):
            self.optimizer.step()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def over(self) -> None:
        """Report nothing more: torch's hook sees the optimizers of the next training in this process, too."""
        self.compared.report = lambda *_: None

    def now(self) -> str:
        return digest.digest(digest.chosen({"default": self.state()}, [self.optimizer], []))


def test_each_second_committed_step_is_reported_as_it_was_before_the_next() -> None:
    training, expected = Training(), list[tuple[int, str]]()
    for step in range(1, 8):
        training.step()
        expected += [(step, training.now())] if step % 2 == 0 else []
    training.step()
    assert training.reports == expected
    assert len({one for _, one in expected}) == 3
    assert training.warnings == []


def test_two_trainings_that_do_the_same_report_the_same_and_one_flipped_bit_is_seen() -> None:
    one, other = Training(), Training()
    one.train(3)
    other.train(3)
    assert one.reports == other.reports != []
    other.position.corrupt = 1
    one.train(2)
    other.train(2)
    assert other.position.corrupt == 0
    assert [step for step, _ in one.reports] == [step for step, _ in other.reports] == [2, 4]
    assert one.reports[1] != other.reports[1]


def test_what_is_large_is_complete_before_the_optimizer_or_a_heal_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = digest.digest, threading.Event()

    def slow(tensors: Any) -> str:
        begun.set()
        threading.Event().wait(0.2)
        return real(tensors)

    monkeypatch.setattr(digest, "digest", slow)
    for change in ({}, {"heal_to": 9}):
        training = Training(size=300_000)
        training.train(2)
        tensors = digest.chosen({"default": training.state()}, [training.optimizer], [])
        before = real(tensors)
        begun.clear()
        training.step(**change)
        assert begun.is_set()
        assert training.reports == [(2, before)]
        assert real(digest.chosen({"default": training.state()}, [training.optimizer], [])) != before


def test_a_state_that_changes_while_it_is_read_is_not_reported_and_the_next_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An optimizer in a thread of its own, or weights that the script changes within a step, as SAM does."""
    real, training = digest.digest, Training()

    def torn(tensors: Any) -> str:
        if training.manager._step == 2:
            with torch.no_grad():
                training.weight[3:].add_(1)
        return real(tensors)

    monkeypatch.setattr(digest, "digest", torn)
    training.train(7)
    assert [step for step, _ in training.reports] == [4, 6]
    assert [text.startswith("some steps are not compared") for text in training.warnings] == [True]


def test_all_streams_of_all_gpus_of_the_state_have_ended_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever GPU is current: no context is made there."""
    training, gpus, read = Training(), Devices(monkeypatch), list[list[int]]()
    state = {str(n): SimpleNamespace(device=torch.device("cuda", n), _version=0) for n in (1, 3)}
    state["on the CPU"] = SimpleNamespace(device=torch.device("cpu"), _version=0)
    monkeypatch.setattr(digest, "chosen", lambda *_, **__: state)
    monkeypatch.setattr(digest, "digest", lambda _: read.append(sorted(gpus.synchronized)) or "0" * 16)
    training.train(3)
    assert training.reports == [(2, "0" * 16)]
    assert read == [[1, 3]]
    assert gpus.contexts == {1, 3}


def test_a_group_that_has_yet_to_take_a_step_of_a_second_optimizer_compares_what_the_others_do() -> None:
    """A group that has healed may come to the first step of one of two optimizers later than the others."""

    def train(first: int) -> Training:
        training = Training(every=1)
        other = torch.nn.Parameter(torch.ones(4))
        of_it = training.state
        training.state = lambda: {**of_it(), "other": other.detach()}  # type: ignore[method-assign]
        second = torch.optim.SGD([other], lr=0.0)
        other.grad = torch.ones(4)
        for step in range(6):
            training.step()
            if step >= first:
                second.step()
        training.over()
        return training

    one, healed = train(first=2), train(first=100)
    assert one.reports == healed.reports != []
    assert one.warnings == healed.warnings == []


def test_a_step_that_is_repeated_is_reported_once_and_a_heal_is_no_commit() -> None:
    training = Training()
    training.train(2)
    training.step(commit=False)
    training.step(commit=False)
    training.step()
    assert [step for step, _ in training.reports] == [2]
    training.step(heal_to=8)  # the state of step 8 is not this group's own
    assert [step for step, _ in training.reports] == [2]
    training.train(2)
    assert [step for step, _ in training.reports] == [2, 10]


def test_nothing_is_reported_before_the_first_step() -> None:
    training = Training(every=1)
    training.manager.start_quorum()
    assert training.reports == []


def local_sgd(training: Training) -> Any:
    return LocalSGD(training.manager, training.module(), training.optimizer, sync_every=3)


def diloco(training: Training) -> Any:
    outer = torch.optim.SGD([training.weight], lr=0.7, momentum=0.9, nesterov=True)
    return DiLoCo(training.manager, [training.module()], training.optimizer, outer, sync_every=3)


@pytest.mark.parametrize("syncs", [local_sgd, diloco])
def test_groups_that_train_apart_are_compared_where_they_are_equal(syncs: Callable[[Training], Any]) -> None:
    """Each with gradients of its own, and so with another inner optimizer, and other weights between syncs."""

    def train(gradient: float, corrupt_after: int | None = None) -> Training:
        training = Training(every=1)
        training.weight.data.add_(100.0)  # a flipped bit of a smaller number may vanish in the next sum
        with syncs(training):
            for step in range(12):
                if step == corrupt_after:
                    training.position.corrupt = 1
                training.weight.grad = torch.full_like(training.weight, gradient)
                training.optimizer.step()
        assert training.warnings == []
        assert training.position.corrupt == 0
        training.over()
        return training

    one, other, wrong = train(1.0), train(-3.0), train(2.0, corrupt_after=4)
    assert [step for step, _ in one.reports] == [1, 2, 3]  # none yet after the last
    assert one.reports == other.reports
    inner = [training.optimizer.state[training.weight]["momentum_buffer"] for training in (one, other)]
    assert not torch.equal(*inner)
    wrong_steps = [step for mine, (step, right) in zip(wrong.reports, one.reports, strict=True) if mine[1] != right]
    # DiLoCo's next sync begins from what is wrong; LocalSGD's average (which is made up here) wipes it out.
    assert wrong_steps == ([2] if syncs is local_sgd else [1, 2, 3])


@pytest.mark.parametrize(("part", "steps"), [("default.model.*", []), ("Streaming*.original_parameters.*", [1, 2, 3])])
def test_of_diloco_only_what_groups_share_between_syncs_can_be_named(part: str, steps: list[int]) -> None:
    """The digest is taken before a sync, when each group's own weights are elsewhere."""

    def train(gradient: float) -> Training:
        training = Training(every=1, parts=(part,))
        with diloco(training):
            for _ in range(12):
                training.weight.grad = torch.full_like(training.weight, gradient)
                training.optimizer.step()
        training.over()
        return training

    one, other = train(1.0), train(-3.0)
    assert one.reports == other.reports
    assert [step for step, _ in one.reports] == steps
    assert ["there are StreamingDiLoCoFragment_0" in text for text in one.warnings] == [True] * (not steps)


@pytest.mark.parametrize("first", [True, False])
def test_a_second_optimizer_beside_that_of_localsgd_accuses_nobody(first: bool) -> None:
    """LocalSGD knows one optimizer; another may change weights before it does."""

    def train(gradient: float, alone: int = 0) -> Training:
        training = Training(every=1)
        other = torch.nn.Parameter(torch.ones(4))
        of_it = training.state
        training.state = lambda: {**of_it(), "other": other.detach()}  # type: ignore[method-assign]
        second = torch.optim.SGD([other], lr=0.5)
        module = training.module()
        module.other = other
        with LocalSGD(training.manager, module, training.optimizer, sync_every=3) as local:
            for _ in range(alone):  # a group that joins trains on nothing before its first sync
                local.sync()
            for _ in range(12 - 3 * alone):
                for weight in (training.weight, other):
                    weight.grad = torch.full_like(weight, gradient)
                for optimizer in (second, training.optimizer) if first else (training.optimizer, second):
                    optimizer.step()
        assert training.warnings == []
        training.over()
        return training

    one, wide, joined = train(1.0), train(-3.0), train(2.0, alone=1)
    assert one.reports == wide.reports
    assert {1, 2, 3} <= {step for step, _ in one.reports}
    assert set(joined.reports) <= set(one.reports)
    assert len(joined.reports) >= 2


def test_of_several_managers_none_is_compared() -> None:
    training = Training(every=1)
    training.train(2)
    other = training.kind()
    other.start_quorum()
    other.should_commit()
    before = list(training.reports)
    training.train(3)
    assert training.reports == before
    assert [("several Managers" in text) for text in training.warnings] == [True]


def test_what_cannot_be_compared_is_told_once_and_stops_nothing() -> None:
    strange = Training(every=1, parts=("no.such.*",))
    strange.train(4)
    assert strange.reports == []
    assert [("compare_parts" in text) for text in strange.warnings] == [True]
    typo = Training(every=1, parts=("*.weight", "*.wieght"))
    typo.train(4)
    assert len(typo.reports) >= 3
    (text,) = typo.warnings
    assert "no tensor to compare is *.wieght; there are default." in text
    broken = Training(every=1)
    broken.state = lambda: 1 / 0  # type: ignore[method-assign]
    broken.train(4)
    assert broken.manager._step == 4
    assert [("ZeroDivisionError" in text) for text in broken.warnings] == [True]


@pytest.mark.parametrize("slow", [False, True])
def test_nobody_pays_for_a_comparison_that_was_not_asked_for(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "USUAL", 4)
    monkeypatch.setattr(comparison, "MOST", 0.5)
    training = Training(every=None)
    state = training.state

    def gathers() -> Any:
        time.sleep(0.3 if slow else 0)
        return state()

    training.state = gathers  # type: ignore[method-assign]
    for _ in range(20):
        time.sleep(0.03)
        training.step()
    training.over()
    assert len(training.reports) == (1 if slow else 4)
    assert ["costs more than 50%" in text for text in training.warnings] == [True] * slow


def test_buffers_are_reported_apart_as_they_are_before_the_next_step_changes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread computes the digest while the next forward pass changes them."""
    real, begun = digest.digest, threading.Event()

    def slow(tensors: Any) -> str:
        begun.wait(10)
        return real(tensors)

    def train(shift: float) -> tuple[Training, list[str]]:
        training, norm, expected = Training(), torch.nn.BatchNorm1d(3), list[str]()
        of_it = training.state
        training.state = lambda: {**of_it(), "norm": norm.state_dict(), "rng": torch.get_rng_state()}  # type: ignore[method-assign]
        monkeypatch.setattr(digest, "digest", slow)
        for step in range(7):
            floats = {f"default.norm.{name}": getattr(norm, name) for name in ("running_mean", "running_var")}
            expected += [real(floats)] if step in (2, 4, 6) else []
            begun.clear()
            training.manager.start_quorum()
            norm(torch.arange(12.0).view(4, 3) + shift)
            begun.set()
            training.weight.grad = torch.ones_like(training.weight)
            training.manager.should_commit()
            training.optimizer.step()
        training.over()
        assert training.warnings == []
        return training, expected

    (one, mine), (other, theirs) = train(0.0), train(5.0)
    assert [(step, apart, whose) for step, _, apart, whose in one.reports] == [
        (2 * n, apart, "default.norm") for n, apart in enumerate(mine, 1)
    ]
    assert [apart for *_, apart, _ in other.reports] == theirs
    assert set(mine).isdisjoint(theirs)
    assert [report[:2] for report in one.reports] == [report[:2] for report in other.reports]  # the weights


def test_named_parts_are_compared_whatever_they_are() -> None:
    training = Training(every=1, parts=("*.weight",))
    training.train(2)
    ((_, first),) = training.reports
    with torch.no_grad():
        training.optimizer.state[training.weight]["momentum_buffer"].add_(1)
    training.weight = torch.nn.Parameter(torch.arange(8.0) - 0.5)
    assert digest.digest({"default.model.weight": training.weight}) == first
