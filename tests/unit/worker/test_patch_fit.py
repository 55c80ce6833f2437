"""The check whether a patch fits: names found, names missing, and the message then."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ftslurm.worker import patch_fit


class Base:
    def __init__(self, name: str, *, port: int = 0) -> None:
        self._name, self._port = name, port


class Derived(Base):
    kind = "x"

    def call(self, first: int, second: int) -> int:
        return len(self._name) + first + second


class Module:
    Derived = Derived

    @staticmethod
    def function(left: int, right: int) -> int:
        return left + right


@pytest.mark.parametrize(
    ("need", "there"),
    [
        ("function", True),
        ("function(left)", True),
        ("function(right, left)", True),
        ("function(left, middle)", False),
        ("missing", False),
        ("missing(left)", False),
        ("function()", True),
        ("missing()", False),
        ("Derived.len()", False),
        ("Derived.kind", True),
        ("Derived._name", True),  # of its instances
        ("Derived.len", True),  # a method uses it
        ("Derived._other", False),
        ("Derived._name(left)", False),
        ("Derived._name.upper", False),
        ("Derived.call(first, second)", True),
        ("Derived(name, port)", True),
        ("Derived(name, host)", False),
        ("Derived.kind(name)", False),  # nothing to call
    ],
)
def test_what_a_patch_needs_is_found_or_named(need: str, there: bool) -> None:
    assert patch_fit.fits(Module, need) == there
    if there:
        patch_fit.require(Module, "function", need)
    else:
        with pytest.raises(patch_fit.Misfit, match=r"Module has no missing, no ") as caught:
            patch_fit.require(Module, "function", "missing", need)
        assert str(caught.value).endswith(f"no {need}")


def test_what_another_patch_has_wrapped_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Base.__init__

    @functools.wraps(original)
    def init(*args: Any, **words: Any) -> None:
        original(*args, **words)

    monkeypatch.setattr(Base, "__init__", init)
    assert patch_fit.fits(Module, "Derived._name", "Derived(name, port)")


@pytest.mark.parametrize(
    "error", [patch_fit.Misfit("torchft.ddp has no hook"), AttributeError("torchft.ddp has no hook")]
)
def test_a_patch_that_can_be_done_without_is_left_out_with_a_sentence(error: Exception) -> None:
    left_out: list[str] = []
    with patch_fit.optional(left_out, "hook", "others may die"):
        pass
    assert left_out == []
    with patch_fit.optional(left_out, "hook", "others may die"):
        raise error
    (words,) = left_out
    for part in ("the patch hook", "others may die", "torchft.ddp has no hook", "torch 2", patch_fit.TRIED):
        assert part in words


def test_a_patch_that_cannot_be_done_without_ends_the_worker_and_names_the_versions_to_install() -> None:
    with (
        pytest.raises(RuntimeError, match="the worker does not start") as caught,
        patch_fit.indispensable("the managers"),
    ):
        patch_fit.require(Module, "ManagerServer(bind)")
    for part in ("cannot be closed to strangers (the managers)", "no ManagerServer(bind)", patch_fit.TRIED):
        assert part in str(caught.value)
