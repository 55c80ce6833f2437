"""A filter in the kernel, with which only the guard can connect to a server on loopback.

torchft's manager, torch's TCPStore and http.server take whoever comes, and cannot listen on anything but TCP. So the
kernel is told to drop every attempt to connect to their listening socket (a SYN, RFC 9293) unless it comes from a port
of 127.0.0.1 that the guard holds at that moment. No other user can hold the same port meanwhile, and what is connected
already is not touched: a classic BPF program on the listening socket (socket(7), SO_ATTACH_FILTER), which needs no
privileges. A SYN that is dropped gets no answer: to a stranger there is nothing at this port.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

_SO_ATTACH_FILTER = 26
_LOOPBACK = 0x7F000001
_NET = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF: offsets from here on are in the IP header, others in the TCP header
_LD_W, _LD_H, _LD_B, _AND, _JEQ, _JSET, _RET = 0x20, 0x28, 0x30, 0x54, 0x15, 0x45, 0x06
_PASS, _DROP = 0xFFFFFFFF, 0
MOST = 64  # connections that are being set up at a time: the kernel limits the length of a filter


class FilteredListener:
    """A listening socket on loopback that only the guard can connect to.

    Args:
        listener: the socket, or a copy of it; it is ours from now on.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.port = int(listener.getsockname()[1])
        self.ports: set[int] = set()  # of our connections that are being set up
        try:
            attach(listener, ())
            self.filtered = True
        except OSError:
            self.filtered = False  # the kernel has no filters; network.py reports it

    def dial(self) -> socket.socket:
        """A socket that is being connected to it; `settled` once it is connected, or has failed.

        Raises:
            OSError: there is no port, no file descriptor, or too many are being set up.
        """
        if len(self.ports) >= MOST:
            raise OSError(errno.EAGAIN, "too many connections are being set up")
        far = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            far.bind(("127.0.0.1", 0))
            self.ports.add(far.getsockname()[1])
            self._allow()
            code = far.connect_ex(("127.0.0.1", self.port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            self.settled(far)
            far.close()
            raise
        return far

    def settled(self, far: socket.socket) -> None:
        """Stop letting this port in: the connection is made, or has failed."""
        self.ports.discard(far.getsockname()[1])
        with suppress(OSError):  # want of memory: the next one who dials says it anew
            self._allow()

    def close(self) -> None:
        """Close our copy of the socket; the server goes on listening."""
        self.listener.close()

    def _allow(self) -> None:
        if self.filtered:
            attach(self.listener, self.ports)


def attach(listener: socket.socket, ports: Iterable[int]) -> None:
    """Drop every SYN but those from these ports of 127.0.0.1.

    Raises:
        OSError: this kernel cannot, or the filter is too long for it.
    """
    program = b"".join(struct.pack("=HBBI", *step) for step in _program(sorted(ports)))
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and where they are
    listener.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    )


def _program(ports: list[int]) -> list[tuple[int, int, int, int]]:
    """The filter: (operation, jump if true, jump if false, operand) each."""
    return [
        (_LD_B, 0, 0, 13),  # the flags of TCP
        (_AND, 0, 0, 0x12),  # SYN and ACK
        (_JEQ, 1, 0, 0x02),  # only SYN: somebody wants to connect
        (_RET, 0, 0, _PASS),
        (_LD_B, 0, 0, _NET),
        (_AND, 0, 0, 0xF0),
        (_JEQ, 1, 0, 0x40),  # IPv4
        (_RET, 0, 0, _DROP),
        (_LD_W, 0, 0, _NET + 12),  # where it comes from
        (_JEQ, 1, 0, _LOOPBACK),
        (_RET, 0, 0, _DROP),
        (_LD_H, 0, 0, 0),  # from which port
        *(step for port in ports for step in ((_JEQ, 0, 1, port), (_RET, 0, 0, _PASS))),
        (_RET, 0, 0, _DROP),
    ]
