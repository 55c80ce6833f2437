"""Gives the checkpoints of one folder to another, for a run that resumes another one. No torch.

The files of a complete checkpoint never change, so they become hard links: nothing is copied, and each folder can be
deleted without the other. Between two file systems the newest checkpoint is copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.places import Folders
from ftslurm.checkpoint.store import Store
from ftslurm.security import owned_files


def hand_on(source: Path, target: Path) -> list[int]:
    """Give the complete checkpoints of `source`, and the positions in the data, to `target`. Return their steps.

    Raises:
        OSError: a file cannot be read or written.
        Distrusted: another user can have written one, or it is a link.
    """
    complete = [found for found in Store(str(source)).survey() if not found.damage]
    linked = source.stat().st_dev == target.stat().st_dev
    for saved in complete[: None if linked else 1]:
        _give(source / saved.part, target / saved.part, os.link if linked else shutil.copy2)
        name = layout.name_of(saved.step)
        Folders().pipe_file(str(target / name), Folders().cat_file(str(source / name)))
    if (source / layout.POSITIONS).is_dir():  # copied: they are appended to
        _give(source / layout.POSITIONS, target / layout.POSITIONS, shutil.copy2)
    return [saved.step for saved in complete]


def _give(source: Path, target: Path, give: Callable[..., object]) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for file in Folders().ls(str(source), detail=True):
        give(file["name"], target / Path(file["name"]).name, follow_symlinks=False)
    owned_files.sync(target)
