"""A subclass of Value is shown, compared, hashed and copied as a frozen dataclass of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from dataclasses import field
from typing import Any

import pytest

from ftslurm.protocol.value_class import Value


class Ours(Value):
    name: str
    steps: tuple[int, ...] = ()
    cached: int = field(default=0, compare=False)


@dataclasses.dataclass(frozen=True)
class Theirs:
    name: str
    steps: tuple[int, ...] = ()
    cached: int = field(default=0, compare=False)


class Empty(Value):
    pass


class Child(Ours, kw_only=True):
    rank: int


class OwnMethods(Value):
    name: str

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnMethods)

    def __hash__(self) -> int:
        return 7


VALUES: list[tuple[Any, ...]] = [("a",), ("a", (1,)), ("b", (1,), 5), ("a", (), 9)]


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("other", VALUES)
def test_it_is_equal_hashed_and_shown_as_the_standard_librarys(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (Ours(*one) == Ours(*other)) == (Theirs(*one) == Theirs(*other))
    assert (hash(Ours(*one)) == hash(Ours(*other))) == (Theirs(*one) == Theirs(*other))
    assert repr(Ours(*one)) == repr(Theirs(*one)).replace("Theirs", "Ours")


def test_only_a_value_of_the_same_class_is_equal() -> None:
    assert Ours("a") != Theirs("a")
    assert Child("a", rank=1) != Ours("a")
    assert Child("a", rank=1) == Child("a", rank=1) != Child("a", rank=2)
    assert repr(Child("a", rank=1)) == "Child(name='a', steps=(), cached=0, rank=1)"
    assert Empty() == Empty()
    assert len({Empty(), Empty()}) == 1


def test_methods_of_the_class_itself_stay() -> None:
    one = OwnMethods("x")
    assert (repr(one), one == OwnMethods("y"), hash(one)) == ("x", True, 7)


def test_the_standard_library_copies_it() -> None:
    one = Child("a", (1, 2), rank=3)
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(one, rank=4) == Child("a", (1, 2), rank=4)
    assert dataclasses.asdict(one) == {"name": "a", "steps": (1, 2), "cached": 0, "rank": 3}


def test_a_submission_imports_nothing_of_the_core() -> None:
    code = "import sys, ftslurm.cli.main, ftslurm.cli.run_verb; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    core = {name for name in done.stdout.split() if name.startswith("ftslurm.core.")}
    assert core <= {"ftslurm.core.state", "ftslurm.core.state.unit_names"}
