"""Trees of dicts, lists and tuples, with tensors and other objects in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may be more than its data


def is_sharded(leaf: object) -> bool:
    """Return whether it is a DTensor; importing their module takes long."""
    return isinstance(leaf, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def is_tensor(leaf: Any) -> bool:
    """Return whether its bytes and its shape are all that it is."""
    return is_sharded(leaf) or (type(leaf) in _PLAIN and leaf.layout == torch.strided)


def local(tensor: Any) -> torch.Tensor:
    """Return a tensor, of a sharded one this rank's part."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def tensors_by_path(tree: object) -> dict[str, torch.Tensor]:
    """Return the tensors of a tree by their paths, such as `optimizer.state.0.exp_avg`."""
    found: dict[str, torch.Tensor] = {}

    def walk(node: Any, path: str) -> None:
        if is_tensor(node):
            while path in found:  # {"a.b": x} beside {"a": {"b": y}}
                path += "'"
            found[path] = node
        elif isinstance(node, Mapping):
            for key, value in node.items():
                walk(value, f"{path}.{key}" if path else str(key))
        elif isinstance(node, (list, tuple)):
            for index, value in enumerate(node):
                walk(value, f"{path}.{index}")

    walk(tree, "")
    return found
