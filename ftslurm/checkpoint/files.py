"""The files of one checkpoint, for torch.distributed.checkpoint (DCP): in a folder, or in an object store.

DCP's metadata and the trees are pickles. In a folder only files that no other user can have written are opened. In an
object store the account decides who may write.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemBase

from ftslurm.checkpoint import layout, object_store
from ftslurm.checkpoint.consensus import GroupFailed
from ftslurm.config.store_url import is_url
from ftslurm.security import owned_files


def files(place: str) -> Files:
    """Return the files of a checkpoint in a folder, or below a URL."""
    return StoredFiles(place) if is_url(place) else FolderFiles(Path(place))


class FolderFiles:
    """The files of one checkpoint, in a folder that the ranks share. Errors are OSErrors, or GroupFailed for files that
    must not be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def writer(self) -> Any:
        """Return DCP's writer for them."""
        return dcp.FileSystemWriter(self.folder, overwrite=True)

    def reader(self) -> Any:
        """Return DCP's reader for them."""
        reader = dcp.FileSystemReader(self.folder)
        reader.fs = _OwnFiles()
        return reader

    def write(self, name: str, content: bytes) -> None:
        """Write a file that does not exist."""
        owned_files.write_file(self.folder / name, content)

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        return _open_own(self.folder / name)

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        return (self.folder / name).exists()

    def written(self, rank: int, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return size and checksum of the files that this rank has written: DCP's, and those named."""
        # Only this rank's files: those of another node may not be visible here yet.
        own = [path for path in self.folder.iterdir() if path.name.startswith(f"__{rank}_")]
        own += [self.folder / name for name in names]
        for path in own:
            path.chmod(0o600)
        return {path.name: (path.stat().st_size, layout.checksum(path)) for path in own}

    def altered(self, rank: int, ranks: int) -> str | None:
        """Return what differs from the manifest in this rank's share of the files; None: nothing."""
        return layout.altered(self.folder, rank, ranks)


class _OwnFiles(FileSystem):  # type: ignore[misc]
    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
        assert mode == "rb"
        with _open_own(Path(path)) as file:
            yield file


def _open_own(path: Path) -> IO[bytes]:
    file = owned_files.open_file(path)
    if why := owned_files.distrust(os.fstat(file.fileno())):
        file.close()
        raise GroupFailed(f"{path.name}: {why}")
    return file


class StoredFiles:
    """Files below a URL, with the methods of `FolderFiles`. What is written is counted, and not read back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs = _Objects(url)

    def writer(self) -> Any:
        writer = dcp.FileSystemWriter(".", sync_files=False, overwrite=True)
        writer.fs, writer.path = self.fs, self.url
        return writer

    def reader(self) -> Any:
        reader = dcp.FileSystemReader(".")
        reader.fs, reader.path = self.fs, self.url
        return reader

    def write(self, name: str, content: bytes) -> None:
        with self.fs.create_stream(self.fs.concat_path(self.url, name), "wb") as stream:
            stream.write(content)

    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        return self.fs.create_stream(self.fs.concat_path(self.url, name), "rb")

    def exists(self, name: str) -> bool:
        return self.fs.exists(self.fs.concat_path(self.url, name))

    def written(self, rank: int, names: Iterable[str]) -> dict[str, tuple[int, int]]:  # noqa: ARG002 all that is counted
        return dict(self.fs.counted)

    def altered(self, rank: int, ranks: int) -> str | None:
        return object_store.altered(self.url, rank, ranks)


class _Objects(FileSystemBase):  # type: ignore[misc]
    """DCP's view of an object store; keeps size and checksum of what it has written, by name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.system, self.root = object_store.open_url(url)
        self.counted: dict[str, tuple[int, int]] = {}

    def _path(self, path: str | os.PathLike[str]) -> str:
        return f"{self.root}{os.fspath(path).removeprefix(self.url)}"

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
        with object_store.errors(self.url), self.system.open(self._path(path), mode) as file:
            counter = _Counter(file)
            yield cast("IO[bytes]", counter) if mode == "wb" else file
        if mode == "wb":
            self.counted[_name(path)] = (counter.size, counter.crc32)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        with object_store.errors(self.url):
            self.system.mv(self._path(path), self._path(new_path))
        self.counted[_name(new_path)] = self.counted.pop(_name(path))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing in a store that has no folders."""
        with object_store.errors(self.url):
            self.system.makedirs(self._path(path), exist_ok=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_url(os.fspath(checkpoint_id))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        with object_store.errors(self.url):
            return bool(self.system.exists(self._path(path)))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        with object_store.errors(self.url):
            self.system.rm_file(self._path(path))


def _name(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).rpartition("/")[2]


class _Counter(io.RawIOBase):
    """Counts what passes through to a stream."""

    def __init__(self, to: IO[bytes]) -> None:
        self.to, self.size, self.crc32 = to, 0, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.to.write(view)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size


Files = FolderFiles | StoredFiles
