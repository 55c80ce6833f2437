"""The kernel of an old or frugal cluster, for one thread and what it starts: without pidfd_open (5.3) and IPv6."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

T = TypeVar("T")
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the kernel's classic BPF
ALLOW, FAIL = 0x7FFF0000, 0x00050000
SOCKET, PIDFD_OPEN, AF_INET6 = 41, 434, 10  # of x86-64
PROGRAM = (
    (LOAD, 0, 0, 0),  # the number of the system call
    (IF_EQUAL, 4, 0, PIDFD_OPEN),
    (IF_EQUAL, 0, 2, SOCKET),
    (LOAD, 0, 0, 16),  # its first argument
    (IF_EQUAL, 2, 0, AF_INET6),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, FAIL | 38),  # ENOSYS
    (RETURN, 0, 0, FAIL | errno.EAFNOSUPPORT),
)


def on_an_old_kernel(do: Callable[[], T]) -> T:
    """Call `do` in a thread of its own: what it starts is without them, too. Skip the test where that cannot be."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86-64")
    with ThreadPoolExecutor(1) as thread:
        if not thread.submit(_enter).result():
            pytest.skip("no system call can be filtered here")
        return thread.submit(do).result()


def _enter() -> bool:
    code = b"".join(struct.pack("HBBI", *line) for line in PROGRAM)
    buffer = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HP", len(PROGRAM), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None)
    return not libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) and not libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0)
