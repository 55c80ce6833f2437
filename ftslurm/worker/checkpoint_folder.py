"""Finds out on a compute node, before the training, whether checkpoints can be written there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

from ftslurm.config.store_url import is_url

_PROBE = b"\0" * 4096  # a quota or a full disk refuses no empty file


def complaint(environ: Mapping[str, str]) -> str | None:
    """Return a warning for the user; None: checkpoints can be written, or none are asked for.

    The folder is created. No file is left in it. In an object store the controller has tried to write already.
    """
    folder = environ.get("FTSLURM_CHECKPOINT_DIR", "")
    if environ.get("FTSLURM_CHECKPOINT_EVERY", "0") == "0" or is_url(folder):
        return None
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(_PROBE)
    except OSError as error:
        return (
            f"no checkpoint can be saved: checkpoint.dir={folder} cannot be written on this group's node "
            f"({error.strerror}); if all groups are lost, everything is. Choose a folder that all nodes share and you "
            f"may write, or free space in it"
        )
    return None
