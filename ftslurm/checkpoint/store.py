"""The checkpoints of a training in one place: which are complete, how one becomes so, which are removed. No torch.

`python -m ftslurm.checkpoint.store WHAT URL ...` prints an `answer` as JSON: the controller asks in a process of its
own, because an object store may be slow.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Manifest, Writer
from ftslurm.checkpoint.places import Bucket, Folders
from ftslurm.config.store_url import is_url
from ftslurm.errors import Distrusted, EnvironmentProblem


class Checkpoint(NamedTuple):
    """A manifest, and whether it can be used."""

    step: int
    name: str  # of the manifest, for a person and the journal
    damage: str | None = None  # why not: a file is missing or has another size, or it is not ours; None: it is complete
    part: str = ""
    run: str = ""  # the id of the run that wrote it


class Store:
    """The checkpoints in a folder, or below a URL. One rank of a group calls it, but for `manifest`."""

    def __init__(self, address: str) -> None:
        """Args:
            address: checkpoint.dir.

        Raises:
            EnvironmentProblem: it is the URL of no object store, or the packages for it are missing.
        """
        self.files: Any
        if is_url(address):
            self.files, self.name = Bucket(address), address.rstrip("/")
            self._root = self.files.root.rstrip("/")
        else:
            self.files, self.name = Folders(), str(Path(address).absolute())
            self._root = self.name

    def path(self, *names: str) -> str:
        """Return the path of a file or part, for `files`."""
        return "/".join((self._root, *names))

    # --- what is there -----------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps of all manifests, the highest first.

        Raises:
            OSError: they cannot be listed.
        """
        found = map(layout.step_of, self._names())
        return sorted((step for step in found if step is not None), reverse=True)

    def survey(self, upto: int | None = None) -> Iterator[Checkpoint]:
        """Yield every checkpoint, damaged ones too, the highest step first; each is inspected when it is yielded.

        Args:
            upto: leave out those of a higher step.

        Raises:
            OSError: they cannot be listed.
        """
        for step in self.steps():
            if (upto is None or step <= upto) and (found := self._look(step)) is not None:
                yield found

    def newest(self, upto: int | None = None) -> Checkpoint | None:
        """Return the complete checkpoint of the highest step, None if there is none or they cannot be listed."""
        with contextlib.suppress(OSError):
            return next((found for found in self.survey(upto) if not found.damage), None)
        return None

    def summary(self) -> tuple[str, int | None, str | None] | None:
        """Return the name and step of the newest complete checkpoint, else the name and damage of the newest manifest.

        If the script saves in a format of its own, only the name of the place; None: nothing is there.

        Raises:
            OSError: it cannot be listed.
        """
        damaged = None
        for found in self.survey():
            if not found.damage:
                return found.name, found.step, None
            damaged = damaged or (found.name, None, found.damage)
        others = {name for name in self._names() if not (name.startswith(".") or layout.PART.fullmatch(name))}
        return damaged or ((self.name, None, None) if others - {layout.POSITIONS} else None)

    def manifest(self, step: int) -> Manifest:
        """Return what the manifest of a step says.

        Raises:
            OSError: it cannot be read, or another user can have written it.
            ValueError: it is none.
        """
        return layout.parse(self.files.cat_file(self.path(layout.name_of(step))), step)

    def _look(self, step: int) -> Checkpoint | None:
        """Inspect a checkpoint; None: it has just been removed."""
        name = f"{self.name}/{layout.name_of(step)}"
        try:
            read = self.manifest(step)
            why = layout.damage(read.files, self._sizes(read.part))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, Distrusted) as error:
            return Checkpoint(step, name, str(error))
        return Checkpoint(step, name, why and f"{read.part}/{why}", read.part, read.run)

    def _part_of(self, step: int) -> str | None:
        """Return the part that the manifest of a step names; None: there is no manifest.

        Raises:
            OSError, ValueError: as `manifest`.
        """
        with contextlib.suppress(FileNotFoundError):
            return self.manifest(step).part
        return None

    def _names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [_last(path) for path in self.files.ls(self._root, detail=False)]
        return []

    def _sizes(self, part: str) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError):
            return {_last(one["name"]): int(one["size"]) for one in self.files.ls(self.path(part), detail=True)}
        return {}

    # --- saving ------------------------------------------------------------------------------------------------------

    def finish(self, step: int, part: str, me: Writer, files: layout.Files) -> str:
        """Make a checkpoint of what has been written; return its name.

        It takes the place of an earlier one of the same step. That one's history has been undone by a full restart.

        Raises:
            OSError: it cannot be one, or a manifest that is not ours is in its place.
            Distrusted: what was written does not stay ours on this file system.
        """
        name = layout.name_of(step)
        try:
            before = self._part_of(step)
        except ValueError as error:
            raise OSError(f"{self.name}/{name} is not replaced: {error}") from error
        if why := layout.damage(files, self._sizes(part)):
            raise OSError(f"{self.name}/{part}/{why}")
        self.files.pipe_file(self.path(name), layout.manifest(step, me, part, files))
        if before is not None:
            self.remove(before)
        return f"{self.name}/{name}"

    def remove(self, part: str) -> None:
        """Remove a part, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.files.rm(self.path(part), recursive=True)

    def distrust(self, writer: Writer, after: int) -> None:
        """Have nobody restore what a group has saved after a step, in this attempt or one before.

        Raises:
            OSError: the store cannot be read or written.
        """
        for name in self._names():
            part = layout.PART.fullmatch(name)
            if part and layout.is_of(part, writer) and int(part["step"]) > after:
                self.files.pipe_file(self.path(name, layout.DISTRUSTED), b"")

    def prune(self, step: int, keep: int, me: Writer) -> None:
        """Remove all but `keep` checkpoints up to the one that has just been saved (0: none), and what is abandoned.

        A checkpoint of a higher step is neither removed nor counted: it could not be read, the training was restored
        from an older one, and it will be overwritten when the training reaches its step again.
        """
        complete = [found for found in self.survey(step) if not found.damage] if keep else []
        for old in complete[keep:]:
            self.files.rm(self.path(layout.name_of(old.step)), recursive=False)
            self.remove(old.part)
        self.sweep(me)

    def sweep(self, me: Writer) -> None:
        """Remove what earlier attempts of this group have not finished, and what other groups have abandoned."""
        names = self._names()
        parts = [found for name in names if (found := layout.PART.fullmatch(name))]
        of_step = Counter(int(part["step"]) for part in parts)
        for part in parts:
            step = int(part["step"])
            if of_step[step] == 1 and layout.name_of(step) in names:
                continue  # it is the manifest's
            with contextlib.suppress(ValueError, PermissionError):  # a manifest that is not ours may name it
                if layout.is_dead(part, me, time.time_ns()) and self._part_of(step) != part[0]:
                    self.remove(part[0])

    # --- the run that saves here -------------------------------------------------------------------------------------

    def owner(self) -> str:
        """Return the run directory of the run that has saved here last; "": none has."""
        with contextlib.suppress(FileNotFoundError):
            return str(self.files.cat_file(self.path(layout.OWNER)).decode(errors="replace"))
        return ""

    def take(self, run: str) -> None:
        """Note a run as the one that saves here."""
        self.files.pipe_file(self.path(layout.OWNER), run.encode())


def _last(path: object) -> str:
    return str(path).rstrip("/").rpartition("/")[2]


def answer(what: str, address: str, *words: str) -> Any:
    """Return what is asked of a store: newest (see `summary`) or owner; or write there: take RUN, or distrust RUN GROUP
    ATTEMPT AFTER.

    Raises:
        OSError: it cannot be read or written.
        EnvironmentProblem: as for Store.
    """
    store = Store(address)
    if what == "newest":
        return store.summary()
    if what == "owner":
        return store.owner()
    if what == "take":
        store.take(words[0])
    else:
        group, attempt, after = map(int, words[1:])
        store.distrust(Writer(words[0], group, attempt), after)
    return None


def main() -> None:
    """Print the answer as JSON."""
    try:
        print(json.dumps(answer(*sys.argv[1:])))
    except (OSError, EnvironmentProblem) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
