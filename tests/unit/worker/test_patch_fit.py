"""The check whether a patch fits: names found, names missing, and the message then."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ftslurm.worker import patch_fit
from ftslurm.worker.private_names import Names, Patch


class Base:
    def __init__(self, name: str, *, port: int = 0) -> None:
        self._name, self._port = name, port


class Derived(Base):
    kind = "x"

    def call(self, first: int, second: int) -> int:
        return len(self._name) + first + second


def function(left: int, right: int) -> int:
    return left + right


@pytest.mark.parametrize(
    ("need", "there"),
    [
        ("function", True),
        ("missing", False),
        ("function()", True),
        ("missing()", False),
        ("Derived.len()", False),
        ("Derived.kind", True),
        ("Derived._name", True),  # of its instances
        ("Derived.len", True),  # a method uses it
        ("Derived._other", False),
        ("Derived._name()", False),
        ("Gone._name", False),
        ("Derived._name.upper", False),
        ("Derived.call()", True),
        ("Derived()", True),
    ],
)
def test_what_a_patch_needs_is_found_or_named(need: str, there: bool) -> None:
    assert patch_fit.missing({__name__: f"function {need}"}) == ([] if there else [f"{need} in {__name__}"])


def test_a_class_or_a_module_that_is_gone_lacks_all_its_names() -> None:
    for gone in (f"{__name__}:Gone", f"{__name__}.gone", "gone"):
        assert patch_fit.missing({gone: "one two()", __name__: "function()"}) == [
            f"one in {gone}",
            f"two() in {gone}",
        ]


def test_what_another_patch_has_wrapped_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Base.__init__

    @functools.wraps(original)
    def init(*args: Any, **words: Any) -> None:
        original(*args, **words)

    monkeypatch.setattr(Base, "__init__", init)
    assert patch_fit.missing({f"{__name__}:Derived": "_name __init__()"}) == []


def patch(monkeypatch: pytest.MonkeyPatch, patch: Patch, *forms: Names) -> Patch:
    """Return a patch that needs other names."""
    monkeypatch.setattr(patch, "forms", forms)
    return patch


def test_of_several_versions_one_must_be_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, half = {__name__: "function"}, {__name__: "function gone"}
    patch_fit.check(patch(monkeypatch, Patch.MANAGER, whole, half))
    patch_fit.check(patch(monkeypatch, Patch.MANAGER, half, whole))
    with pytest.raises(patch_fit.Misfit, match=f"no gone in {__name__}, or there is no gone in {__name__}"):
        patch_fit.check(patch(monkeypatch, Patch.MANAGER, half, half))


def fails() -> None:
    raise AttributeError("torchft.ddp has no hook")


@pytest.mark.parametrize(("need", "said"), [("gone", "there is no gone in "), ("function", "torchft.ddp has no hook")])
def test_a_patch_that_can_be_done_without_is_left_out_with_a_sentence(
    need: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out: list[str] = []
    pure, hook = (
        patch(monkeypatch, one, {__name__: name})
        for one, name in ((Patch.PURE_DDP, "function"), (Patch.COMM_HOOK, need))
    )
    done: list[str] = []
    patch_fit.apply({hook: fails, pure: lambda: done.append("the other")}, left_out)
    assert done == ["the other"]
    (words,) = left_out
    for part in ("the patch comm hook", Patch.COMM_HOOK.without, said, "torch 2", patch_fit.TRIED):
        assert part in words


def test_a_patch_that_cannot_be_done_without_ends_the_worker_and_names_the_versions_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for install, need, said in ((bool, "gone()", r"no gone()"), (fails, "function", "has no hook")):
        managers = patch(monkeypatch, Patch.MANAGERS, {__name__: need})
        with pytest.raises(RuntimeError, match="the script does not start") as caught:
            patch_fit.apply({managers: install}, [])
        for part in ("cannot be closed to strangers (managers)", said, patch_fit.TRIED):
            assert part in str(caught.value)
