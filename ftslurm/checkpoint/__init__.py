"""Checkpoints for a training with torchft: what a script imports. See docs/checkpoints.md.

The names are loaded on first use: the controller imports ftslurm.checkpoint.layout and must not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftslurm.checkpoint.checkpointer import Checkpointer, CheckpointError

__all__ = ["CheckpointError", "Checkpointer"]


def __getattr__(name: str) -> Any:
    """Load a public name (PEP 562)."""
    if name in __all__:
        from ftslurm.checkpoint import checkpointer

        return getattr(checkpointer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
