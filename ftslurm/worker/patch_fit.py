"""Checks that the installed torch and torchft have the names that a patch needs, before it changes anything.

If not, the patch is left out, and the user gets a sentence about the consequence; a patch that closes a server to
strangers is never left out (private_names.py).
"""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.worker.private_names import CLOSED, Names, Patch

TRIED = "torchft 0.2.0 or torchft-nightly 2026.10.26, with torch 2.8 to 2.15"  # by tests/versions.py


class Misfit(RuntimeError):
    """The installed torch or torchft lacks names that a patch needs."""


def apply(installs: Mapping[Patch, Callable[[], object]], left_out: list[str]) -> None:
    """Install the patches that fit.

    Args:
        left_out: gets a sentence for the user about each of the others.

    Raises:
        RuntimeError: a patch that keeps strangers out does not fit; the message names the versions to install.
    """
    for patch, install in installs.items():
        try:
            check(patch)
            install()
        except Exception as error:
            name = patch.name.lower().replace("_", " ")
            reason = str(error) if isinstance(error, Misfit) else repr(error)
            if patch.without == CLOSED:
                text = f"{versions()} cannot be closed to strangers ({name}): {reason}. {CLOSED}. Install {TRIED}"
                raise RuntimeError(text) from error
            text = f"the patch {name}; {patch.without}. {reason[:300]}; tried: {TRIED}"
            left_out.append(f"left out for {versions()}: {text}")


def check(patch: Patch) -> None:
    """Look for the names that a patch needs.

    Raises:
        Misfit: none of the sets of names with which it can do is complete; the message names all that is missing.
    """
    lacking = [missing(names) for names in patch.forms]
    if all(lacking):
        raise Misfit(", or ".join(f"there is no {', no '.join(names)}" for names in lacking))


def missing(names: Names) -> list[str]:
    """Return which of these names are not there."""
    found = []
    for owner, text in names.items():
        try:
            where = pkgutil.resolve_name(owner)
        except (AttributeError, ImportError):
            where = None
        found += [f"{name} in {owner}" for name in text.split() if not _has(where, name)]
    return found


def versions() -> str:
    """Return the installed versions of torchft and torch, for messages."""
    return ", ".join(filter(None, (torchft(), _version("torch")))) or "this torchft"


def torchft() -> str:
    """Return the installed version of torchft; "": it is not known."""
    return ", ".join(filter(None, map(_version, ("torchft", "torchft-nightly"))))


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def _has(where: Any, path: str) -> bool:
    *parents, last = path.removesuffix("()").split(".")
    for parent in parents:
        where = getattr(where, parent, None)
    return hasattr(where, last) or (not path.endswith("()") and last in _used_by(where))


def _used_by(kind: Any) -> set[str]:
    """Return the names that the methods of a class use, which include the attributes of its instances."""
    found: set[str] = set()
    for base in getattr(kind, "__mro__", ()):
        for method in vars(base).values():
            code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
            found |= set(code.co_names) if code is not None else set()
    return found
