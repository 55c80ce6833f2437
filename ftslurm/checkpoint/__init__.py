"""Saves and restores the state of a training: `from ftslurm.checkpoint import Checkpointer`. See docs/checkpoints.md.

The names are imported when they are first used: the controller reads `ftslurm.checkpoint.layout`, and must not load
torch for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftslurm.checkpoint.checkpointer import Checkpointer, CheckpointError, Manager, Stateful

__all__ = ["CheckpointError", "Checkpointer", "Manager", "Stateful"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ftslurm.checkpoint import checkpointer

    return getattr(checkpointer, name)
