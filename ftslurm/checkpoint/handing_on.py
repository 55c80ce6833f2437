"""Gives the checkpoints of one folder to another, for a run that resumes another one. No torch.

A complete checkpoint never changes, so the files are hard links: nothing is copied, and each folder can be deleted
without the other. Between two file systems the newest checkpoint is copied.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Saved, Writer
from ftslurm.errors import Distrusted
from ftslurm.security import owned_files


def hand_on(source: Path, target: Path) -> list[int]:
    """Give the complete checkpoints of `source`, and the positions in the data, to `target`. Return their steps.

    Raises:
        OSError: a file cannot be read or written.
        Distrusted: another user may have written one.
    """
    complete = [found for found in layout.survey(source) if isinstance(found, Saved)]
    linked = source.stat().st_dev == target.stat().st_dev
    if not linked:
        complete = complete[:1]
    for saved in complete:
        part = target / layout.saving_name(saved.step, Writer("handed_on", 0, 0), secrets.token_hex(4))
        part.mkdir(mode=0o700)
        for file in _own(saved.path):
            if linked:
                os.link(file, part / file.name, follow_symlinks=False)
            else:
                shutil.copy2(file, part / file.name, follow_symlinks=False)
        layout.sync(part)
        part.rename(target / saved.path.name)
    positions = source / layout.POSITIONS
    if positions.is_dir():
        (target / layout.POSITIONS).mkdir(mode=0o700, exist_ok=True)
        for file in _own(positions):  # copied: they are appended to
            if not file.name.startswith("."):
                shutil.copy2(file, target / layout.POSITIONS / file.name, follow_symlinks=False)
    layout.sync(target)
    return [saved.step for saved in complete]


def _own(folder: Path) -> list[Path]:
    """Return the files of a folder.

    Raises:
        Distrusted: another user may have written one, or the folder.
    """
    files = list(folder.iterdir())
    for path in (folder, *files):
        if not owned_files.is_own(path):
            raise Distrusted(f"{path} is not handed on: another user may have written it, or it is a link")
    return files
