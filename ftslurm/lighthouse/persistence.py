"""Stores in the run directory what a successor of the Lighthouse needs, so that quorum ids and steps never go back.

`lighthouse.json` is replaced as a whole and synced: quorum ids in blocks, the highest step, the attempts that live and
those that are over. A thread writes it from time to time, because the file system may be slow.

`lighthouse.quorum` holds the last quorum, written in place before any member gets it. It is not synced: written data
survives the process, but not a reboot. So it is used only on a machine that has not been booted since, and only if
lighthouse.json knows of no later quorum, which a successor on another machine may have issued.

A full disk, or a file that cannot be made, does not stop the training: the Lighthouse serves on and tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import zlib
from pathlib import Path

from ftslurm.guard.processes import read
from ftslurm.lighthouse.protobuf import Malformed, read_quorum
from ftslurm.lighthouse.quorum import Quorum
from ftslurm.lighthouse.registry import MOST_STEPS, Memory
from ftslurm.security import owned_files
from ftslurm.security.json_text import MOST, brief, is_whole, read_object

_LARGEST = 1 << 26  # bytes that are read of a file; none of ours is larger
BLOCK = 1000  # quorum ids that are reserved at a time
_HEAD = struct.Struct("!16sII")  # of lighthouse.quorum: the boot, the length and the checksum of what follows


class Keep:
    """The two files of one run."""

    def __init__(self, folder: str) -> None:
        self._state = os.path.join(folder, "lighthouse.json")
        self._boot = bytes.fromhex(read("/proc/sys/kernel/random/boot_id").strip().replace("-", ""))
        self._writing = threading.Lock()
        self.reserved = 0  # quorum ids below this one may be issued
        self._quorum_path = os.path.join(folder, "lighthouse.quorum")
        self._quorum: int | None = None
        with contextlib.suppress(OSError):  # write_state tries again and reports it
            self._open_quorum()

    def _open_quorum(self) -> None:
        if self._quorum is None:
            self._quorum = owned_files.open_fd(Path(self._quorum_path), os.O_RDWR | os.O_CREAT)

    def load(self) -> Memory:
        """Return the memory of the predecessor, an empty one if there was none.

        Quorum ids continue after the last one if it is known, else after its block.

        Raises:
            ValueError: lighthouse.json cannot be read, is damaged or holds impossible values; a person must decide.
        """
        try:
            memory, issued = _read(owned_files.read_text(Path(self._state)))
        except FileNotFoundError:
            return Memory()
        except OSError as error:
            raise ValueError(
                f"{self._state} cannot be read ({error.strerror}): the run's quorum ids are not known"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{self._state} is damaged ({error!r}): the run's quorum ids are not known") from error
        self.reserved = memory.next_id
        last = self._load_quorum()
        memory.last = last if last is not None and last.id + 1 >= issued else None
        if memory.last is not None:
            memory.next_id = memory.last.id + 1
            memory.highest = max(memory.highest, *(m.step for m in memory.last.members))
        return memory

    def _load_quorum(self) -> Quorum | None:
        if self._quorum is None:
            return None
        head, data = b"", b""
        with contextlib.suppress(OSError):
            head = os.pread(self._quorum, _HEAD.size, 0)
            data = os.pread(self._quorum, _LARGEST, _HEAD.size)
        if len(head) < _HEAD.size:
            return None
        boot, length, checksum = _HEAD.unpack(head)
        data = data[:length]
        if not self._boot or boot != self._boot or len(data) != length or zlib.crc32(data) != checksum:
            return None
        with contextlib.suppress(Malformed):
            quorum = read_quorum(data)
            sound = 0 <= quorum.id < MOST and quorum.members and all(m.step < MOST_STEPS for m in quorum.members)
            return quorum if sound else None
        return None

    def write_quorum(self, data: bytes) -> None:
        """Write the last quorum, as protobuf.write_quorum encodes it, before any member gets it.

        This is the only write in the event loop: a successor must know every answer that a member has got. Without a
        sync it is a copy into the page cache; if even that blocks, the pulse stops and the controller starts a
        successor. A full disk does not stop the training: ids are reserved in blocks.
        """
        if self._quorum is None:
            return
        try:
            os.pwrite(self._quorum, _HEAD.pack(self._boot, len(data), zlib.crc32(data)) + data, 0)
        except OSError:
            self.forget_quorum()  # else the quorum before would be taken for the last

    def forget_quorum(self) -> None:
        """Erase the last quorum: its history is over, or it could not be written."""
        if self._quorum is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._quorum, 0)

    def snapshot(self, memory: Memory) -> str:
        """Return the text of lighthouse.json, with the next block of quorum ids reserved."""
        return json.dumps(
            {
                "reserved": max(self.reserved, memory.next_id + BLOCK),
                "issued": memory.next_id,
                "highest": memory.highest,
                "checked": memory.checked,
                "stores": [[store, *owner] for store, owner in memory.stores.items()],
                "over": [[group, attempt] for group, attempt in memory.over.items()],
                "fenced": list(memory.fenced),
            }
        )

    def write_state(self, text: str) -> None:
        """Replace lighthouse.json by a snapshot, for good: readers see the old or the new one, also after a crash.

        Raises:
            OSError: it could not be written, and the old one is still there; or lighthouse.quorum cannot be made.
        """
        with self._writing:
            owned_files.replace_file(Path(self._state), text.encode(), durable=True)
            self.reserved = max(self.reserved, int(json.loads(text)["reserved"]))
            self._open_quorum()


def _read(text: str) -> tuple[Memory, int]:
    """Parse lighthouse.json. Return the memory, and the next quorum id at the time it was written.

    Raises:
        ValueError, TypeError, KeyError: a value is impossible or missing.
    """
    kept = read_object(text)
    if kept is None:
        raise ValueError("it holds no JSON of ours")
    memory = Memory(next_id=_count(kept["reserved"]), highest=_count(kept["highest"]))
    if not all(isinstance(kept[name], list) for name in ("stores", "over", "fenced")):
        raise TypeError("stores, over and fenced are lists")
    memory.checked = bool(kept["checked"])
    memory.stores = {str(store): (_count(group), _count(attempt)) for store, group, attempt in kept["stores"]}
    memory.over = {_count(group): _count(attempt, -1) for group, attempt in kept["over"]}
    memory.fenced = dict.fromkeys(str(store) for store in kept["fenced"])
    return memory, _count(kept["issued"])


def _count(value: object, least: int = 0) -> int:
    if not is_whole(value) or value < least:
        raise ValueError(f"not a number of ours: {brief(value)}")
    return value
