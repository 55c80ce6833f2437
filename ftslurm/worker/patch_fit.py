"""Checks that the installed torch and torchft have the internals that a patch hooks or reads.

Each patch calls `require` before it changes anything. If the check fails, an optional patch is left out, and the user
gets a sentence about the consequence (`optional`). A patch that closes a server to strangers is never left out: the
worker does not start (`indispensable`).
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIED = "torchft 0.2.0 or torchft-nightly 2026.10.26, with torch 2.8 to 2.15"  # by tests/versions.py
_NEED = re.compile(r"([\w.]+)(?:\(([\w, ]*)\))?")


class Misfit(RuntimeError):
    """The installed torch or torchft lacks internals that a patch needs."""


def require(where: Any, *needs: str) -> None:
    """Check a module or a class for the internals that a patch needs.

    Args:
        where: the module or class.
        needs: "f(a, b)": a function, method or class that can be called with arguments of these names, or "f()" with
            any; "A.b": an attribute of a class, or a name that one of the methods of that class uses.

    Raises:
        Misfit: something is missing; the message names all of it.
    """
    missing = [need for need in needs if not _has(where, need)]
    if missing:
        raise Misfit(f"{getattr(where, '__name__', 'torchft')} has no {', no '.join(missing)}")


def fits(where: Any, *needs: str) -> bool:
    """Return whether `require` would find everything."""
    return all(_has(where, need) for need in needs)


@contextmanager
def optional(left_out: list[str], patch: str, means: str) -> Iterator[None]:
    """Apply an optional patch: if it fails, add a sentence for the user to `left_out`.

    Args:
        left_out: the sentences so far.
        patch: the patch's name.
        means: the consequence for the user without the patch.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, Misfit) else repr(error)
        left_out.append(f"left out for {versions()}: the patch {patch}; {means}. {reason[:300]}; tried: {TRIED}")


@contextmanager
def indispensable(patch: str) -> Iterator[None]:
    """Apply a patch without which the servers of a worker would be open to strangers.

    Raises:
        RuntimeError: the patch cannot be applied; the message names the versions to install.
    """
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"{versions()} cannot be closed to strangers ({patch}): {error}. Everybody who reaches this machine could "
            f"read and change the training, so the worker does not start. Install {TRIED}"
        ) from error


def versions() -> str:
    """Return the installed versions of torchft and torch, for messages."""
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
    """Return the names that the methods of a class use, which include the attributes of its instances."""
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
    except (TypeError, ValueError):  # not callable, or native code without a signature
        return False
    return all(name in parameters for name in names)
