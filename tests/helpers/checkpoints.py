"""Writes checkpoints of a few bytes, as a training does, and finds their files."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Checkpoint, Store

ME = Writer("run-1", 0, 0)


def write(store: Store, step: int, me: Writer = ME, **contents: bytes) -> tuple[str, layout.Files]:
    """Write the files of a checkpoint that is not finished yet; return its part and what is in it."""
    part, files = layout.part_name(step, me, time.time_ns()), {}
    for name, content in (contents or {"a": b"12345", "b": b""}).items():
        with store.files.open(store.path(part, name), "wb") as file:
            file.write(content)
        files[name] = (len(content), [zlib.crc32(content)] if content else [])
    return part, files


def save(place: Path | Store, step: int, me: Writer = ME, **contents: bytes) -> Checkpoint:
    """Write a complete checkpoint."""
    store = place if isinstance(place, Store) else Store(str(place))
    part, files = write(store, step, me, **contents)
    return Checkpoint(step, store.finish(step, part, me, files), None, part, me.run)


def part_of(folder: Path, step: int) -> Path:
    """Return where the files of a checkpoint are."""
    return folder / Store(str(folder)).manifest(step).part


def steps(place: Path | Store) -> list[int]:
    """Return the steps of the complete checkpoints, the highest first."""
    store = place if isinstance(place, Store) else Store(str(place))
    return [found.step for found in store.survey() if not found.damage]
