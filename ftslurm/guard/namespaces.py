"""Enters the container of another process of the same user: its user and mount namespaces and its root."""

from __future__ import annotations

import ctypes
import os

_KINDS = {"user": 0x10000000, "mnt": 0x00020000}  # the user namespace first: it gives the right to enter the other


def enter(pid: int) -> None:
    """Make this process see the files that another one sees, and go to its working directory.

    Does nothing but the last for a process in no container. Call it in a process with one thread.

    Raises:
        OSError: the process is gone, or may not be followed: its container was made with root's help.
    """
    cwd = os.open(f"/proc/{pid}/cwd", os.O_PATH | os.O_CLOEXEC)
    paths = {kind: f"/proc/{pid}/ns/{kind}" for kind in _KINDS}
    others = {kind: path for kind, path in paths.items() if os.readlink(path) != os.readlink(f"/proc/self/ns/{kind}")}
    if others:
        libc = ctypes.CDLL(None, use_errno=True)
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
        files = {kind: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for kind, path in others.items()}
        for kind, file in files.items():
            if libc.setns(file, _KINDS[kind]):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), paths[kind])
        os.fchdir(root)
        os.chroot(".")
    os.fchdir(cwd)
