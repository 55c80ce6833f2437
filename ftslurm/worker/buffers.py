"""Finds the buffers of a script's modules, as BatchNorm's running statistics, and averages them over the groups.

Each group computes its buffers from its own data, so groups that hold the same weights evaluate different models. With
`health.buffers=average` they are averaged in each step that commits, or sync of LocalSGD and DiLoCo:

- before the vote, so that an error in it counts as one of the step;
- in float64, so that the mean of equal buffers (constants) has the same bits;
- and replaced after it, if the step is committed: a group that heals has loaded its state by then.

Integers, as BatchNorm's num_batches_tracked, have no mean.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ftslurm.errors import complain

if TYPE_CHECKING:
    import torch  # else where it is needed, as digest.py: run_manager.py imports this before torch

# Of each Manager: a quorum, and in it each buffer's name in the state, its module, and its name there.
_known = WeakKeyDictionary[Any, "tuple[int, list[tuple[str, torch.nn.Module, str]]]"]()


def is_wanted() -> bool:
    """Return whether buffers are averaged."""
    return os.environ.get("FTSLURM_BUFFERS") == "average"


def of(manager: Any, state: Any = None) -> dict[str, torch.Tensor]:
    """Return the floating-point buffers that a Manager heals others with, in an order that all groups have.

    Args:
        manager: the Manager.
        state: what it heals others with; None: it is read if it is needed.
    """
    from ftslurm.worker import digest

    quorum, found = _known.get(manager, (None, []))
    if quorum != manager._quorum_id:  # all groups look again: modules may have been made in the meantime
        found = _find(state or {key: read() for key, read in manager._user_state_dicts.items()})
        _known[manager] = manager._quorum_id, found
        if not found and is_wanted():
            complain("health.buffers=average: the state that the Manager heals others with has no buffer of a module")
    return {name: one for name, module, key in found for _, one in digest.named(module._buffers[key])}


def average(manager: Any) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Return each with its mean over the groups, flat. After an error the means are wrong, and nothing commits."""
    if not is_wanted():
        return []
    manager.wait_quorum()
    local = [*of(manager).values()]
    if not local:
        return []
    import torch

    device = max((one.device for one in local), key=str)  # "cuda:0" rather than "cpu"
    share = torch.ones(1)  # torchft divides by too much in a first step that groups heal in (init_sync)
    flat = torch.cat([one.detach().flatten().to(device, torch.float64) for one in (*local, share)])
    manager.allreduce(flat).wait()
    return zip(local, (flat[:-1] / flat[-1]).split([one.numel() for one in local]), strict=True)


def _find(state: Mapping[str, Any]) -> list[tuple[str, torch.nn.Module, str]]:
    """Return the floating-point buffers of modules in a state. Takes some milliseconds."""
    import torch

    from ftslurm.worker import digest

    places = dict[int, tuple[torch.nn.Module, str]]()
    for module in gc.get_objects():
        if issubclass(type(module), torch.nn.Module):
            for key, buffer in vars(module).get("_buffers", {}).items():
                for _, local in digest.named(buffer):
                    with suppress(RuntimeError):  # a fake one, as torch.compile makes them
                        places[local.data_ptr()] = module, key
    places.pop(0, None)  # without memory
    floats = {name: one.data_ptr() for name, one in digest.named(state) if one.is_floating_point()}
    return [(name, *places[floats[name]]) for name in sorted(floats) if floats[name] in places]
