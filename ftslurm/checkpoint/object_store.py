"""Checkpoints in an object store, such as S3: names, manifests, which are complete, which may be deleted. No torch.

    URL/step-00000100.json                              the manifest: one put, written last, makes the checkpoint
    URL/data-00000100-RUN-GROUP-ATTEMPT-TOKEN/...       its files; the manifest names this folder
    URL/.owner                                          the run directory of the run that saves here

A store has no rename, but a put is atomic: a manifest shows either the checkpoint before or the new one. Files belong
to the store's accounts, not to users of this machine: whoever may write there can make a run load what they wrote.

`python -m ftslurm.checkpoint.object_store look URL` prints the newest checkpoint as JSON: the controller asks in a
process of its own, because a store may be slow.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Candidate, StoreRefused, Unusable
from ftslurm.config.store_url import refusal
from ftslurm.errors import EnvironmentProblem

OWNER = ".owner"
IDLE_S = 24 * 3600.0  # files of an unfinished checkpoint show only when they are whole, and may be large
_MANIFEST = re.compile(r"(step-\d{8,18})\.json", re.ASCII)
_DATA = re.compile(r"data-(?P<step>\d+)-(?P<run>\w+)-(?P<group>\d+)-(?P<attempt>\d+)-\w+", re.ASCII)


def open_url(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
        EnvironmentProblem: it is no object store's, or the packages for it are missing.
    """
    if why := refusal(url):
        raise EnvironmentProblem(why)
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise EnvironmentProblem(f"{url} cannot be opened by {sys.executable}: {error}") from error
    return system, str(path).rstrip("/")


@contextlib.contextmanager
def errors(url: str) -> Iterator[None]:
    """Turn every error of a client library into an OSError that names the URL."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise OSError(f"{url}: {type(error).__name__}: {' '.join(str(error).split())[:400]}") from error


class ObjectStore:
    """The checkpoints below a URL, with the methods of `FolderStore`."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._fs, self._root = open_url(self.name)
        self._listing: Future[list[int]] | None = None  # for `steps_of_positions`, which must not wait
        self._thread: ThreadPoolExecutor | None = None

    # --- what is there -------------------------------------------------------------------------------------------

    def survey(self, upto: int | None = None) -> Iterator[Candidate | Unusable]:
        """Yield every checkpoint, the highest step first; each is inspected when it is yielded.

        Raises:
            OSError: the store cannot be read. An empty one holds nothing.
        """
        for step in sorted(self._steps(), reverse=True):
            if (upto is None or step <= upto) and (found := self._look(step)) is not None:
                yield found

    def candidates(self) -> tuple[list[Candidate], list[Unusable]]:
        found = list(self.survey())
        complete = [one for one in found if isinstance(one, Candidate)]
        return complete, [one for one in found if isinstance(one, Unusable)]

    def newest_step(self, upto: int) -> int:
        with contextlib.suppress(OSError):
            for found in self.survey(upto):
                if isinstance(found, Candidate):
                    return found.step
        return 0

    def steps_of_positions(self, now: int, newest: int, every: int) -> list[int]:  # noqa: ARG002 as in FolderStore
        """Return the steps of the checkpoints as they were at the last call: a training must not wait for a store."""
        known: list[int] = []
        if self._listing is not None:
            if not self._listing.done():
                return []
            with contextlib.suppress(OSError):
                known = self._listing.result()
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="ftslurm_listing")
        self._listing = self._thread.submit(self._steps)
        return [step for step in known if step <= now]

    def holds_others(self) -> bool:
        """Return whether something lies there that ftslurm has not written."""
        return any(not (_MANIFEST.fullmatch(name) or _DATA.fullmatch(name) or name == OWNER) for name in self._names())

    # --- saving --------------------------------------------------------------------------------------------------

    def begin(self, step: int, me: Writer) -> str:
        return f"data-{step:08d}-{layout.word(me.run)}-{me.group}-{me.attempt}-{secrets.token_hex(4)}"

    def place(self, part: str) -> str:
        return f"{self.name}/{part}"

    def finish(
        self, part: str, step: int, me: Writer, ranks: int, files: Mapping[str, int], crc32: Mapping[str, list[int]]
    ) -> str:
        manifest = json.loads(layout.manifest(step, me, ranks, files, crc32)) | {"folder": part}
        before = self._manifest(step)
        if before is not None and (not isinstance(before, dict) or before.get("format") != layout.FORMAT):
            raise StoreRefused(f"{self._url_of(step)} exists and is not a checkpoint of ftslurm")
        with errors(self.name):
            self._fs.pipe_file(self._path_of(step), json.dumps(manifest).encode())
        if before is not None:
            self._remove_data(before.get("folder"))  # of a history that a full restart has undone
        return self._url_of(step)

    def abandon(self, part: str) -> None:
        with contextlib.suppress(OSError):
            self._remove_data(part)

    def prune(self, step: int, keep: int, me: Writer, name: str) -> None:  # noqa: ARG002 as in FolderStore
        complete = [found for found in self.survey(upto=step) if isinstance(found, Candidate)]
        for old in complete[keep:] if keep else ():
            with errors(self.name):
                self._fs.rm_file(self._path_of(old.step))
            self._remove_data(old.place.rpartition("/")[2])
        self.sweep(me, everybody=True)

    def sweep(self, me: Writer, everybody: bool = False) -> None:
        names = self._names()
        parts = [found for name in names if (found := _DATA.fullmatch(name))]
        used = {self._folder_of(step) for step in self._steps()} if parts else set()
        for part in parts:
            if part[0] in used:
                continue
            ours = (part["run"], int(part["group"])) == (layout.word(me.run), me.group)
            if (ours and int(part["attempt"]) < me.attempt) or (everybody and self._idle_s(part[0]) > IDLE_S):
                self._remove_data(part[0])

    # --- the run that saves here ---------------------------------------------------------------------------------

    def owner(self) -> str:
        """Return the run directory of the run that has saved here last; "": none has."""
        with errors(self.name), contextlib.suppress(FileNotFoundError):
            return str(self._fs.cat_file(f"{self._root}/{OWNER}").decode(errors="replace"))
        return ""

    def take(self, run: str) -> None:
        with errors(self.name):
            self._fs.pipe_file(f"{self._root}/{OWNER}", run.encode())

    # --- objects -------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        with errors(self.name), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            return [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]
        return []

    def _steps(self) -> list[int]:
        found = [layout.step_of(match[1]) for name in self._names() if (match := _MANIFEST.fullmatch(name))]
        return [step for step in found if step is not None]

    def _path_of(self, step: int) -> str:
        return f"{self._root}/{layout.name_of(step)}.json"

    def _url_of(self, step: int) -> str:
        return f"{self.name}/{layout.name_of(step)}.json"

    def _manifest(self, step: int) -> Any:
        """Return the manifest of a step, None if there is none, "" if it is no JSON."""
        try:
            with errors(self.name):
                text = self._fs.cat_file(self._path_of(step))
        except FileNotFoundError:
            return None
        try:
            return json.loads(text[: layout.MAX_MANIFEST])
        except (ValueError, RecursionError):
            return ""

    def _folder_of(self, step: int) -> str:
        read = self._manifest(step)
        return str(read.get("folder")) if isinstance(read, dict) else ""

    def _look(self, step: int) -> Candidate | Unusable | None:
        """Return a checkpoint if it is complete, else what is wrong; None: it has just been removed."""
        read, name = self._manifest(step), self._url_of(step)
        if read is None:
            return None
        if not isinstance(read, dict) or read.get("format") != layout.FORMAT or read.get("step") != step:
            return Unusable(step, name, "it is no manifest of this step and this version of ftslurm")
        folder, files = read.get("folder"), read.get("files")
        if not isinstance(folder, str) or not _DATA.fullmatch(folder) or not isinstance(files, dict) or not files:
            return Unusable(step, name, "it names no files")
        there = self._sizes(folder)
        for file, size in files.items():
            if file not in there:
                return Unusable(step, name, f"{folder}/{file} is missing")
            if there[file] != size:
                return Unusable(step, name, f"{folder}/{file} has {there[file]} bytes, {size!s:.40} were written")
        return Candidate(step, name, f"{self.name}/{folder}")

    def _sizes(self, folder: str) -> dict[str, int]:
        try:
            with errors(self.name):
                entries = self._fs.ls(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        return {str(entry["name"]).rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}

    def _idle_s(self, folder: str) -> float:
        """Return how long ago the last file of a folder was written; 0 if the store does not tell."""
        with contextlib.suppress(OSError, NotImplementedError, ValueError, KeyError), errors(self.name):
            paths = [f"{self._root}/{folder}/{name}" for name in self._sizes(folder)]
            return time.time() - float(max(self._fs.modified(path).timestamp() for path in paths))
        return 0.0

    def _remove_data(self, folder: object) -> None:
        if isinstance(folder, str) and _DATA.fullmatch(folder):
            with errors(self.name), contextlib.suppress(FileNotFoundError):
                self._fs.rm(f"{self._root}/{folder}", recursive=True)


def manifest_of(url: str) -> Any:
    """Return what the manifest of a checkpoint says.

    Args:
        url: the folder of its files.

    Raises:
        OSError: it cannot be read, or is another checkpoint's by now.
    """
    above, _, folder = url.rpartition("/")
    match = _DATA.fullmatch(folder)
    read = ObjectStore(above)._manifest(int(match["step"])) if match else None
    if not isinstance(read, dict) or read.get("folder") != folder:
        raise OSError(f"{url} has just been replaced")
    return read


def main() -> None:
    """Print the newest checkpoint below a URL as JSON (look URL), or note a run as its owner (take URL RUN)."""
    what, url, *run = sys.argv[1:]
    try:
        store = ObjectStore(url)
        if what == "take":
            store.take(run[0])
            return
        found = next((one for one in store.survey() if isinstance(one, Candidate)), None)
        torn = None if found else next((one for one in store.survey() if isinstance(one, Unusable)), None)
        newest = found or torn
        print(json.dumps({
            "name": newest.name if newest else None,
            "step": found.step if found else None,
            "damaged": torn.reason if torn else None,
            "others": store.holds_others(),
            "owner": store.owner(),
            "url": store.name,
        }))  # fmt: skip
    except (OSError, EnvironmentProblem) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
