"""Keeps the last quorum in the run directory, so that a Lighthouse that is started again goes on with it.

`lighthouse.quorum` is written in place before any member gets the quorum. It is not synced: written data survives the
process, but not a reboot. So it is used only on a machine that has not been booted since; without it, the next quorum
has a new id and waits for all live attempts, as the first one of a run.

A full disk, or a file that cannot be made, does not stop the training.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

from ftslurm.guard.processes import read
from ftslurm.lighthouse.output import log
from ftslurm.lighthouse.protobuf import Malformed, read_quorum
from ftslurm.lighthouse.quorum import Quorum
from ftslurm.lighthouse.registry import MOST_STEPS
from ftslurm.security import owned_files
from ftslurm.security.json_text import MOST

_LARGEST = 1 << 26  # bytes that are read of the file; none of ours is larger
_HEAD = struct.Struct("!16sII")  # the boot, the length and the checksum of what follows


class LastQuorum:
    """The file of one run."""

    def __init__(self, folder: str) -> None:
        self._boot = bytes.fromhex(read("/proc/sys/kernel/random/boot_id").strip().replace("-", ""))
        self._file: int | None = None
        path = Path(folder, "lighthouse.quorum")
        try:
            self._file = owned_files.open_fd(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            log(f"a successor of this Lighthouse will not know the last quorum: {path}: {error.strerror}")

    def load(self, closed: bool = False) -> Quorum | None:
        """Return the last quorum; None: there was none, or this machine has not written it since it was booted.

        Args:
            closed: its writer has closed the file, so any machine may read it.
        """
        if self._file is None:
            return None
        with contextlib.suppress(OSError, struct.error, Malformed):
            boot, length, checksum = _HEAD.unpack(os.pread(self._file, _HEAD.size, 0))
            data = os.pread(self._file, min(length, _LARGEST), _HEAD.size)
            if (closed or boot == self._boot) and len(data) == length and zlib.crc32(data) == checksum:
                quorum = read_quorum(data)
                sound = 0 <= quorum.id < MOST and quorum.members and all(m.step < MOST_STEPS for m in quorum.members)
                return quorum if sound else None
        return None

    def write(self, data: bytes) -> None:
        """Write a quorum, as protobuf.write_quorum encodes it, before any member gets it.

        This is the only write in the event loop: a successor must know every answer that a member has got. Without a
        sync it is a copy into the page cache; if even that blocks, the pulse stops and the controller starts a
        successor.
        """
        if self._file is None:
            return
        try:
            os.pwrite(self._file, _HEAD.pack(self._boot, len(data), zlib.crc32(data)) + data, 0)
        except OSError:
            self.forget()  # else the quorum before would be taken for the last

    def forget(self) -> None:
        """Erase the last quorum: its history is over, or it could not be written."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
