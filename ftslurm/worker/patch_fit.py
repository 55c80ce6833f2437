"""Whether the installed torch and torchft have the internals that a patch hooks or reads.

Each patch calls `require` before it changes anything. One that a run can do without is then left out, and the user is
told what that means (`optional`). One that closes a server to strangers is never left out: the worker does not start.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIED = "torchft 0.2.0 or torchft-nightly 2026.10.26, with torch 2.8 to 2.14"  # by tests/versions.py
_NEED = re.compile(r"([\w.]+)(?:\(([\w, ]*)\))?")


class Misfit(RuntimeError):
    """The installed torch or torchft does not have what a patch needs."""


def require(where: Any, *needs: str) -> None:
    """Check a module or a class for the internals that a patch needs.

    Args:
        where: the module or class.
        needs: "f(a, b)": a function, method or class that can be called with arguments of these names, or "f()" with
            any; "A.b": an attribute of a class, or a name that one of the methods of that class uses.

    Raises:
        Misfit: it names all that is missing.
    """
    missing = [need for need in needs if not _has(where, need)]
    if missing:
        raise Misfit(f"{getattr(where, '__name__', 'torchft')} has no {', no '.join(missing)}")


def fits(where: Any, *needs: str) -> bool:
    """Whether `require` finds everything."""
    return all(_has(where, need) for need in needs)


@contextmanager
def optional(left_out: list[str], patch: str, means: str) -> Iterator[None]:
    """Apply a patch that a run can do without: if it fails, a sentence for the user is added to `left_out`.

    Args:
        left_out: the sentences so far.
        patch: its name.
        means: what is different for the user without it.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, Misfit) else repr(error)
        left_out.append(f"left out for {versions()}: the patch {patch}; {means}. {reason[:300]}; tried: {TRIED}")


@contextmanager
def indispensable(patch: str) -> Iterator[None]:
    """Apply a patch without which the servers of a worker would be open to everybody.

    Raises:
        RuntimeError: it cannot be applied; for the user, who reads which versions to install.
    """
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"{versions()} cannot be closed to strangers ({patch}): {error}. Everybody who reaches this machine could "
            f"read and change the training, so the worker does not start. Install {TRIED}"
        ) from error


def versions() -> str:
    """The installed torchft and torch, for messages."""
    return ", ".join(filter(None, map(_version, ("torchft", "torchft-nightly", "torch")))) or "this torchft"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def _has(where: Any, need: str) -> bool:
    match = _NEED.fullmatch(need)
    assert match is not None, need
    path, names = match.groups()
    found = where
    for name in path.split("."):
        if not hasattr(found, name):
            return names is None and name == path.rpartition(".")[2] and name in _used_by(found)
        found = getattr(found, name)
    return names is None or _takes(found, re.findall(r"\w+", names))


def _used_by(kind: Any) -> set[str]:
    """The names that the methods of a class use: the attributes of its instances are among them."""
    found: set[str] = set()
    for base in getattr(kind, "__mro__", ()):
        for method in vars(base).values():
            code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
            found |= set(code.co_names) if code is not None else set()
    return found


def _takes(function: Any, names: list[str]) -> bool:
    if not names:
        return callable(function)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # not callable, or native code that does not say
        return False
    return all(name in parameters for name in names)
