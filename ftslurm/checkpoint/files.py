"""The files of one checkpoint, for torch.distributed.checkpoint (DCP): in a folder, or in an object store.

Their checksums are computed while they are written, one for each block, and compared while they are read: no byte is
handed out before its block has been checked, and nothing is read twice.

DCP's metadata and the trees are pickles. In a folder only files that no other user can have written are opened. In an
object store the account decides who may write.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemBase

from ftslurm.checkpoint import layout, object_store
from ftslurm.checkpoint.consensus import GroupFailed
from ftslurm.checkpoint.layout import BLOCK
from ftslurm.config.store_url import is_url
from ftslurm.security import owned_files


class Files(FileSystemBase):  # type: ignore[misc]
    """DCP's view of the files. Errors are OSErrors, or GroupFailed for files that must not be read."""

    def __init__(self, place: str) -> None:
        """Args:
        place: their folder, or the URL above them.
        """
        self.place = place
        self.system: Any
        self.root: str
        self.system, self.root = object_store.open_url(place) if is_url(place) else (_Folder(), place)
        self.written: dict[str, tuple[int, list[int]]] = {}  # by this object: size, and checksum of each block

    @functools.cached_property
    def expected(self) -> Mapping[str, tuple[int, list[int]]]:
        """What the manifest says of each file: size, and checksum of each block."""
        url = is_url(self.place)
        said = object_store.manifest_of(self.place) if url else layout.read_manifest(Path(self.place))
        return {name: (size, said["crc32"][name]) for name, size in said["files"].items()}

    def writer(self) -> Any:
        """Return DCP's writer for them."""
        writer = dcp.FileSystemWriter(".", sync_files=False, overwrite=True)  # they are flushed when they are closed
        writer.fs, writer.path = self, self.root
        return writer

    def reader(self) -> Any:
        """Return DCP's reader for them."""
        reader = dcp.FileSystemReader(".")
        reader.fs, reader.path = self, self.root
        return reader

    def write(self, name: str, content: bytes) -> None:
        """Write a file that does not exist."""
        with self.create_stream(self.concat_path(self.root, name), "wb") as stream:
            stream.write(content)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for reading."""
        if name not in self.expected:
            raise FileNotFoundError(f"{self.place} has no {name}")
        with self.errors():
            file = self.system.open(self.concat_path(self.root, name), "rb")
        with file:
            yield cast("IO[bytes]", io.BufferedReader(_Checked(self, name, file)))

    def errors(self) -> contextlib.AbstractContextManager[None]:
        return object_store.errors(self.place) if is_url(self.place) else contextlib.nullcontext()

    # --- what DCP calls --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
        name = Path(path).name
        if mode == "rb":
            with self.open(name) as file:
                yield file
            return
        with self.errors(), self.system.open(os.fspath(path), "wb") as file:
            counter = _Counter(file)
            yield cast("IO[bytes]", counter)
            if isinstance(self.system, _Folder):
                file.flush()
                os.fsync(file.fileno())
        self.written[name] = (counter.size, counter.crc32)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        with self.errors():
            self.system.mv(os.fspath(path), os.fspath(new_path))
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the folder is there, and a store has none."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 as DCP calls it
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        with self.errors():
            return bool(self.system.exists(os.fspath(path)))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        with self.errors():
            self.system.rm_file(os.fspath(path))


class _Folder:
    """The part of fsspec's interface that `Files` uses, for a folder in which files are our own."""

    exists, mv, rm_file = staticmethod(os.path.exists), staticmethod(os.rename), staticmethod(os.unlink)

    def open(self, path: str, mode: str) -> IO[bytes]:
        if mode == "wb":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.fdopen(os.open(path, flags, 0o600), mode)
        file = owned_files.open_file(Path(path))
        if why := owned_files.distrust(os.fstat(file.fileno())):
            file.close()
            raise GroupFailed(f"{Path(path).name}: {why}")
        return file


class _Counter(io.RawIOBase):
    """Counts what passes through to a file, and computes the checksum of each block."""

    def __init__(self, to: IO[bytes]) -> None:
        self.to, self.size = to, 0
        self.crc32: list[int] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.to.write(view)
        at = 0
        while at < len(view):
            if self.size % BLOCK == 0:
                self.crc32.append(0)
            part = view[at : at + BLOCK - self.size % BLOCK]
            self.crc32[-1] = zlib.crc32(part, self.crc32[-1])
            self.size += len(part)
            at += len(part)
        return len(view)

    def tell(self) -> int:
        return self.size


class _Checked(io.RawIOBase):
    """Reads a file in blocks, each of which is what was written."""

    def __init__(self, files: Files, name: str, file: IO[bytes]) -> None:
        self.files, self.name, self.file, self.at = files, name, file, 0
        self.size, self.crc32 = files.expected[name]
        self.block = functools.lru_cache(2)(self._block)  # torch.load reads the end of a tensor first

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self.at < self.size:
            number, start = divmod(self.at, BLOCK)
            if start == 0 and len(view) - done >= min(BLOCK, self.size - self.at):
                length = self._fill(number, view[done : done + BLOCK])
            else:
                part = self.block(number)[start : start + len(view) - done]
                length = len(part)
                view[done : done + length] = part
            done += length
            self.at += length
        return done

    def _block(self, number: int) -> memoryview:
        content = memoryview(bytearray(BLOCK))
        return content[: self._fill(number, content)]

    def _fill(self, number: int, into: memoryview) -> int:
        """Read a block, check it, and return its length."""
        start = number * BLOCK
        wanted = into[: self.size - start]
        with self.files.errors():
            self.file.seek(start)
            length: int = self.file.readinto(wanted)  # type: ignore[attr-defined]
        found, written = zlib.crc32(wanted), self.crc32[number] if number < len(self.crc32) else None
        if length != len(wanted) or found != written:
            raise GroupFailed(
                f"{self.name} is not what was written: the checksum of its bytes from {start} on is {found}, it was "
                f"{written!r:.40}"
            )
        return length
