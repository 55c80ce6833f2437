"""The files of one checkpoint, as torch.distributed.checkpoint (DCP) reads and writes them.

Their checksums are computed while they are written, one for each block, and compared while they are read: no byte is
handed out before its block has been checked, and nothing is read twice. DCP's metadata and the trees are pickles:
places.py opens only those that no other user can have written.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import BLOCK
from ftslurm.checkpoint.store import Store


class Files(FileSystem):  # type: ignore[misc]
    """DCP's view of a part. Its files have no path but their names."""

    def __init__(self, store: Store, part: str, expected: layout.Files | None = None) -> None:
        """Args:
        expected: what its manifest says, to read them.
        """
        self.store, self.part, self.expected = store, part, expected or {}
        self.written: dict[str, tuple[int, list[int]]] = {}  # by this object: size, and checksum of each block

    def writer(self) -> Any:
        """Return DCP's writer for them."""
        writer = dcp.FileSystemWriter("", sync_files=False)  # they are flushed when they are closed
        writer.fs = self
        return writer

    def reader(self) -> Any:
        """Return DCP's reader for them."""
        reader = dcp.FileSystemReader("")
        reader.fs = self
        return reader

    # --- what DCP calls ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
        name = str(path).removesuffix(".tmp")  # the manifest comes last: nothing need be renamed
        if mode == "rb" and name not in self.expected:
            raise FileNotFoundError(f"{self.part} has no {name}")
        with self.store.files.open(self.store.path(self.part, name), mode) as file:
            if mode == "rb":
                yield cast("IO[bytes]", io.BufferedReader(_Checked(file, name, *self.expected[name])))
                return
            counter = _Counter(file)
            yield cast("IO[bytes]", counter)
        self.written[name] = (counter.size, counter.crc32)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:  # noqa: ARG002 as DCP calls it
        return suffix

    def exists(self, path: str | os.PathLike[str]) -> bool:  # noqa: ARG002
        return False  # a part is written once

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Do nothing: the file has its last name."""

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the part is there."""


class _Counter(io.RawIOBase):
    """Counts what passes through to a file, and computes the checksum of each block."""

    def __init__(self, to: IO[bytes]) -> None:
        self.to, self.size = to, 0
        self.crc32: list[int] = []

    def write(self, data: Any) -> int:
        left = view = memoryview(data).cast("B")
        self.to.write(view)
        while left:
            if self.size % BLOCK == 0:
                self.crc32.append(0)
            part, left = left[: (room := BLOCK - self.size % BLOCK)], left[room:]
            self.crc32[-1] = zlib.crc32(part, self.crc32[-1])
            self.size += len(part)
        return len(view)

    def tell(self) -> int:
        return self.size


class _Checked(io.RawIOBase):
    """Reads a file in blocks, each of which is what was written."""

    def __init__(self, file: IO[bytes], name: str, size: int, crc32: list[int]) -> None:
        self.file, self.name, self.size, self.crc32 = file, name, size, crc32
        self.at = 0
        self.block = functools.lru_cache(2)(self._block)  # torch.load reads the end of a tensor first

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self.at, BLOCK)
        part = self.block(number)[start : start + len(buffer)] if self.at < self.size else b""
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)

    def _block(self, number: int) -> memoryview:
        start = number * BLOCK
        self.file.seek(start)
        content = self.file.read(min(BLOCK, self.size - start))
        found, written = [zlib.crc32(content)], self.crc32[number : number + 1]
        if found != written:
            raise OSError(
                f"{self.name} is not what was written: the checksum of its bytes from {start} on is {found}, it was "
                f"{written!r:.40}"
            )
        return memoryview(content)
