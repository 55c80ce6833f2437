"""A digest of tensors as they lie in memory: equal for equal bits, on whatever devices they are.

Each tensor is read as integers, in rows of 16,384, the last one filled up with zeros. A row becomes the sum of its
integers, each times an odd constant of its place, modulo 2**64; names, types, shapes and sums go through BLAKE2b. So a
change of one element in a row is always found, but for a collision of BLAKE2b (1 in 2**64); of several unless the
constants cancel what has changed, at worst 1 in 2**32 (two sign bits). NaNs and -0.0 are bits like others. Only
integers are added, so the order, the device and the kernel make no difference.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch

ROW = 1 << 14  # integers that are added up
# Integers that are read at once. On a CPU so few that torch needs one thread (its limit is 32,768): several would wait
# for each other wherever the cores are busy with the step.
BLOCK = {"cpu": ROW}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return 16 hexadecimal digits. Needs memory for one piece of a tensor; waits for a GPU when all is begun.

    A tensor that is not contiguous is copied, one at a time.
    """
    total = hashlib.blake2b(digest_size=8)
    read = list[torch.Tensor]()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        integers = tensor.contiguous().reshape(-1).view(_INTEGERS[min(4, tensor.element_size())])
        sums = torch.empty(-(-integers.numel() // ROW), dtype=torch.int64, device=tensor.device)
        size = BLOCK.get(tensor.device.type, 256 * ROW)
        for block, sums_of_block in zip(integers.split(size), sums.split(size // ROW), strict=True):
            if lacking := -block.numel() % ROW:
                block = torch.nn.functional.pad(block, (0, lacking))
            torch.sum(block.view(-1, ROW) * _constants(tensor.device), 1, out=sums_of_block)
        read.append(sums)
    for sums in read:
        total.update(f"{sums.tolist()}\n".encode())
    return total.hexdigest()


@cache
def _constants(device: torch.device) -> torch.Tensor:
    """Return an odd number for each place in a row, the same everywhere."""
    drawn = hashlib.shake_256(b"ftslurm: constants of a digest").digest(8 * ROW)
    return (torch.frombuffer(bytearray(drawn), dtype=torch.int64) | 1).to(device)


def named(tree: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a state by their names, as `default.model.weight`; of a sharded one the local part.

    A sparse one, which no optimizer trains, is left out: it has no memory that can be read as integers.
    """
    if hasattr(tree, "__tensor_flatten__"):
        tree = {part: getattr(tree, part) for part in tree.__tensor_flatten__()[0]}
    if isinstance(tree, torch.Tensor) and tree.layout is torch.strided:
        yield name, tree
    elif isinstance(tree, Mapping | list | tuple):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from named(value, f"{name}.{key}" if name else str(key))


def chosen(
    state: Mapping[str, Any],
    optimizers: Iterable[torch.optim.Optimizer],
    parts: Iterable[str],
    weights_only: bool = False,
) -> dict[str, torch.Tensor]:
    """Return the tensors of a state that all groups have in common.

    Those are what the optimizers train, and what they know of it. Buffers of a module (the averages of BatchNorm),
    random states and the like may differ between groups that are well.

    Args:
        parts: patterns of names; the tensors with these names instead, whatever they are.
        weights_only: leave out what the optimizers know.
    """
    tensors = dict(named(state))
    if patterns := list(parts):
        return {name: one for name, one in tensors.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    addresses = trained(optimizers, weights_only)
    return {name: one for name, one in tensors.items() if one.untyped_storage().data_ptr() in addresses}


def trained(optimizers: Iterable[torch.optim.Optimizer], weights_only: bool = False) -> set[int]:
    """Return the addresses of what optimizers train, and of their state unless `weights_only`."""
    return {
        one.untyped_storage().data_ptr()
        for optimizer in optimizers
        for tree in (optimizer.param_groups, [] if weights_only else list(optimizer.state.values()))
        for _, one in named(tree)
    } - {0}


def flip_bit(tensors: Mapping[str, torch.Tensor]) -> str:
    """Flip the lowest bit of an element of the largest tensor, of equal ones the first. Return its name.

    The element is drawn, and not from the script's random numbers: two groups that are drilled must not be equal.
    """
    name = max(sorted(tensors), key=lambda one: tensors[one].numel())
    element = tensors[name].detach()[tuple(map(secrets.randbelow, tensors[name].shape))]
    element.view(_INTEGERS[element.element_size()]).bitwise_xor_(1)
    return name
