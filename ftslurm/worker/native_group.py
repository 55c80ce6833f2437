"""torch's own process groups between the groups of a run (torchft.process_group=native; torch 2.14, torchft 0.3).

Such a process group stays the same object when the members of the quorum change. They meet in the store that it was
made with, so torch wants one that all groups share and that outlives each of them. A TCPStore cannot be that one: its
clients never connect again (torch 2.14.1), so if it were lost, no group could be set up any more. The store here is
none of its own, but leads to that of a group in the present quorum, as torchft 0.2.0's process groups have it: it is
gone only if the quorum is.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ftslurm.worker import group_end, patch_fit
from ftslurm.worker.quorum_abort import BrokenQuorums

torchft: Any = importlib.import_module("torchft.process_group")


class QuorumStore(dist.Store):  # type: ignore[misc]
    """A store that is another one in each quorum; it has the methods that Gloo and nccl2 call."""

    def __init__(self) -> None:
        super().__init__()
        self.address = ""
        self.quorum: Any = None  # torch's client
        self.written: list[str] = []

    def move(self, address: str, timeout: timedelta) -> None:
        """Go to the next quorum's. If that is on the same server, delete there what was written for the last one."""
        written, self.written = self.written, []
        if address.partition("/")[0] == self.address.partition("/")[0]:
            for key in written:
                self.quorum.delete_key(key)
        self.address, self.quorum = address, torchft.create_store_client(address, timeout)

    def compare_set(self, key: str, expected: bytes, value: bytes) -> Any:
        """Set a key that has the expected value; return its value."""
        self.written.append(key)
        return self.quorum.compare_set(key, expected, value)

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""
        self.written.append(key)
        self.quorum.set(key, value)

    def get(self, key: str) -> Any:
        """Wait for a key; return its value."""
        return self.quorum.get(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait for keys."""
        self.quorum.wait(keys, timeout)


@dataclass
class Native:
    """What one of torch's process groups in this process was made with."""

    backend: str
    timeout: timedelta
    store: QuorumStore = field(default_factory=QuorumStore)
    address: str = ""  # of the store of the present quorum

    def again(self) -> Any:
        """Return another process group like this one."""
        return native_group(self.backend, self.timeout)

    def meet(self, group: Any, quorums: BrokenQuorums, options: Any) -> None:
        """Connect to the other members of the quorum, in a thread that is abandoned if the quorum breaks.

        Raises:
            Broken: the quorum has broken. Gloo's set-up goes on for five times the time-out, NCCL's for ever.
        """
        self.store.move(self.address, options.timeout)
        quorums.unless_broken(lambda: group.reconfigure(options).wait())


def native_group(backend: str, timeout: timedelta = timedelta(seconds=60)) -> Any:
    """Make one of torch's process groups for the Manager of a script: `Manager(pg=native_group("gloo"), ...)`.

    The Manager takes another one after an error, so leave it to the Manager: what torch cannot end, a collective that
    hangs (group_end.py) or a set-up that waits for a dead member, must not hold the next quorum.

    It is a plain dist.ProcessGroup: in the methods of a subclass torch holds the GIL while it waits for a lock whose
    owner may want the GIL (2.14.1: PyProcessGroup::allreduce, and ~AsyncWork in Gloo's thread).

    Args:
        backend: gloo or nccl2.
        timeout: of its collectives.

    Raises:
        RuntimeError: torch or torchft is too old.
    """
    if not hasattr(dist.ProcessGroup, "reconfigure") or not hasattr(torchft, "reconfigure_with_store"):
        raise RuntimeError(f"torch's own process groups need torch 2.14 and torchft 0.3: {patch_fit.versions()}")
    native, rank = Native(backend, timeout), int(os.environ["REPLICA_GROUP_ID"])  # another rank in each group
    place = native.store, rank, rank + 1  # until the first quorum
    if backend == "gloo":
        kind, devices = dist.ProcessGroup.BackendType.GLOO, ["cpu", "cuda"]
        made = dist.ProcessGroupGloo(*place, timeout, enable_reconfigure=True)
    else:
        kind, devices = dist.ProcessGroup.BackendType.CUSTOM, ["cuda"]
        options = dist.ProcessGroupNCCL.Options()
        options._timeout, options.enable_reconfigure = timeout, True
        made = dist.ProcessGroupNCCL2(*place, options)
    group = dist.ProcessGroup(*place)
    group._set_default_backend(kind)
    for device in devices:
        group._register_backend(torch.device(device), kind, made)
    group_end.natives[group] = native
    return group
