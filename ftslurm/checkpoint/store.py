"""Where checkpoints are kept: in a folder that all nodes share, or in an object store (object_store.py). No torch."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Ignored, Saved, Writer
from ftslurm.security import owned_files

IDLE_S = 3600.0  # an unfinished checkpoint of another group that has not changed for this long is abandoned


class StoreRefused(Exception):
    """Checkpoints cannot be kept or loaded here; the message says why."""


@dataclass(frozen=True)
class Candidate:
    """A complete checkpoint."""

    step: int
    name: str  # its path or URL, for a person and the journal
    place: str  # where its files are: a folder, or a URL


@dataclass(frozen=True)
class Unusable:
    """A checkpoint that is damaged, or something else with its name."""

    step: int
    name: str
    reason: str
    foreign: bool = False  # ftslurm has not written it


class FolderStore:
    """The checkpoints of one training, in a folder. One rank of a group calls it, but for `place` and
    `steps_of_positions`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def candidates(self) -> tuple[list[Candidate], list[Unusable]]:
        """Return the complete checkpoints, and what cannot be used, each with the highest step first.

        Raises:
            OSError: they cannot be listed.
            StoreRefused: one of them must not be loaded.
        """
        complete, unusable = [], []
        for found in layout.survey(self.folder):
            step = layout.step_of(found.path.name) or 0
            if isinstance(found, Ignored):
                unusable.append(Unusable(step, str(found.path), found.reason, found.foreign))
            elif why := owned_files.distrust(found.path.stat()):
                raise StoreRefused(f"{found.path} is not loaded: {why}")
            else:
                complete.append(Candidate(step, str(found.path), str(found.path)))
        return complete, unusable

    def newest_step(self, upto: int) -> int:
        """Return the step of the newest complete checkpoint; 0: there is none, or it cannot be read."""
        found = layout.newest(self.folder, upto=upto)
        return found.step if found else 0

    def steps_of_positions(self, now: int, newest: int, every: int) -> list[int]:
        """Return the steps whose positions in the data are still needed; empty: it is not known now."""
        kept = [step for step in layout.steps(self.folder) if step <= now]
        return kept if every else [*kept, newest, now]  # newest may be being saved

    def begin(self, step: int, me: Writer) -> str:
        """Return the name under which a new checkpoint is written before it is complete."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.folder / layout.saving_name(step, me, secrets.token_hex(4))
        part.mkdir(mode=0o700)
        return part.name

    def place(self, part: str) -> str:
        """Return where its files go."""
        return str(self.folder / part)

    def finish(
        self, part: str, step: int, me: Writer, ranks: int, files: Mapping[str, int], crc32: Mapping[str, list[int]]
    ) -> str:
        """Make it complete, in one move; return its path or URL."""
        written, path = self.folder / part, self.folder / layout.name_of(step)
        owned_files.write_file(written / layout.MANIFEST, layout.manifest(step, me, ranks, files, crc32))
        if why := owned_files.distrust(written.stat()):  # a file system without owners: it could never be loaded
            raise StoreRefused(f"{self.folder} cannot hold checkpoints, files written there do not stay ours: {why}")
        layout.sync(written)
        if os.path.lexists(path):
            self._move_away(path, step)
        written.rename(path)
        layout.sync(self.folder)
        return str(path)

    def _move_away(self, path: Path, step: int) -> None:
        """Remove an earlier checkpoint of the same step: its history has been undone by a full restart."""
        found = layout.look(path, step)
        if isinstance(found, Ignored) and (found.foreign or found.doubtful):
            raise StoreRefused(f"{path} exists and is not a checkpoint of ftslurm: {found.reason}")
        path.rename(path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}"))

    def abandon(self, part: str) -> None:
        """Remove what has been written."""
        shutil.rmtree(self.folder / part, ignore_errors=True)

    def prune(self, step: int, keep: int, me: Writer, name: str) -> None:
        """Delete old checkpoints after this one has been saved, and what was never finished."""
        complete = [found for found in layout.survey(self.folder, upto=step) if isinstance(found, Saved)]
        for old in layout.to_prune(complete, step, keep):
            old.path.rename(self.folder / f".removed-{old.path.name}-{secrets.token_hex(4)}")
        self._sweep(me, idle_since=Path(name).stat().st_mtime)

    def sweep(self, me: Writer) -> None:
        """Delete what earlier attempts of this group have not finished."""
        self._sweep(me, idle_since=None)

    def _sweep(self, me: Writer, idle_since: float | None) -> None:
        """Delete the dot folders of attempts that are over.

        Args:
            idle_since: the file system's own time now (clocks may differ). None: delete only those of
                earlier attempts of this group.
        """
        for path in self.folder.glob(".*") if self.folder.is_dir() else ():
            idle_s = 0.0
            try:
                if idle_since is not None:
                    idle_s = idle_since - max(p.stat().st_mtime for p in [path, *path.iterdir()])
            except OSError:
                continue  # another group has just deleted it
            if layout.is_dead(path.name, me, idle_s, IDLE_S):
                shutil.rmtree(path, ignore_errors=True)
