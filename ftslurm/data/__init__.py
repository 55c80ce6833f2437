"""Gives every sample once whatever happens to the groups: `from ftslurm.data import Batches`. See docs/data.md."""

from ftslurm.data.batches import Batches, DataError

__all__ = ["Batches", "DataError"]
