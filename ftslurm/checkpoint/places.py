"""The file systems in which checkpoints are kept, with fsspec's methods as far as they are used. No torch.

In a folder, files have owners: only those that no other user can have written are read. What is written is on disk
before the next thing is done. fsspec's own local file system does neither, and follows links.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ftslurm.config.store_url import refusal
from ftslurm.errors import EnvironmentProblem
from ftslurm.security import owned_files


class Folders:
    """The file system of this machine."""

    def ls(self, path: str, detail: bool) -> list[Any]:
        """Return the paths in a folder; with `detail` their sizes too.

        Raises:
            OSError: it cannot be read.
            Distrusted: with `detail`: another user can have written something there, or it is a link.
        """
        found = sorted(Path(path).iterdir())
        if not detail:
            return found
        owned_files.check_own([Path(path), *found], owned_files.COPY)
        return [{"name": str(one), "size": one.stat().st_size} for one in found]

    def cat_file(self, path: str) -> bytes:
        """Return the content of a file that no other user can have written."""
        with owned_files.open_own(Path(path)) as file:
            return file.read()

    def pipe_file(self, path: str, content: bytes) -> None:
        """Write a file: others see all of it, or the one before."""
        self._made(path)
        owned_files.replace_file(Path(path), content, durable=True)

    @contextlib.contextmanager
    def open(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        """Open a file that no other user can have written ("rb"), or a new one ("wb")."""
        if mode == "rb":
            with owned_files.open_own(Path(path)) as file:
                yield file
            return
        folder = self._made(path)
        with os.fdopen(owned_files.open_fd(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL), mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        owned_files.sync(folder)

    def _made(self, path: str) -> Path:
        """Return the folder of a file, and make it."""
        folder = Path(path).parent
        for one in (folder.parent, folder):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def rm(self, path: str, recursive: bool) -> None:
        """Remove a file, or a folder with all that is in it."""
        if recursive:
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink()


class Bucket:
    """fsspec's file system of an object store. Its errors are OSErrors that name the URL."""

    def __init__(self, url: str) -> None:
        """Args:
            url: as s3://bucket/folder.

        Raises:
            EnvironmentProblem: it is no object store's, or the packages for it are missing.
        """
        if why := refusal(url):
            raise EnvironmentProblem(why)
        try:
            from fsspec.core import url_to_fs

            self._system, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise EnvironmentProblem(f"{url} cannot be opened by {sys.executable}: {error}") from error
        self.url, self.root = url, str(root)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._system, name)

        def call(*words: Any, **more: Any) -> Any:
            try:
                self._system.invalidate_cache()  # others write there too
                return method(*words, **more)
            except FileNotFoundError:
                raise
            except Exception as error:
                text = " ".join(str(error).split())[:400]
                raise OSError(f"{self.url}: {type(error).__name__}: {text}") from error

        return call
