"""Change the settings of a tree of plain values that presets have composed; the tree itself stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftslurm.config.notation import Override, value
from ftslurm.config.typed_values import as_in
from ftslurm.errors import ConfigError

_GONE = object()


def put(tree: Any, one: Override) -> Any:
    """Return a tree with one override.

    Raises:
        ConfigError: it cannot be, because there is a list, say.
    """
    new = _GONE if one.word.startswith("~") else value(one.kinds, one.text, one.key)
    return _put(tree, one.key.split("."), new, one)


def _put(old: Any, path: Sequence[str], new: Any, one: Override) -> Any:
    if not path:
        return _merged(old, new, one.key)
    name, *rest = path
    if isinstance(old, list):
        if not name.isdecimal() or int(name) >= len(old):
            key = one.key.removesuffix(f".{'.'.join(path)}")
            elements = ", ".join(f"{key}.{place}={element}" for place, element in enumerate(old))
            raise ConfigError(f"{one.word}: {key} is a list; it has {elements:.400}")
        items = [(str(place), element) for place, element in enumerate(old)]
        return list(_put(dict(items), path, new, one).values())
    inner = old if isinstance(old, dict) else {}
    changed = {**inner, name: _put(inner.get(name), rest, new, one)}
    return {key: element for key, element in changed.items() if element is not _GONE}


def _merged(old: Any, new: Any, key: str) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: _merged(old.get(name), inner, f"{key}.{name}") for name, inner in new.items()}
    if old and {type(old), type(new)} == {dict, list}:
        how = f"mapping in this job: set its values one by one, as in {key}.NAME=VALUE"
        raise ConfigError(f"{key} is a {how if new == [*new] else f'list in this job: it must be a list{as_in(key)}'}")
    return new
