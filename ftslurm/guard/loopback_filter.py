"""A kernel filter that lets only the guard connect to a server on loopback.

torchft's manager, torch's TCPStore and http.server accept every client, and can only listen on TCP. So a classic BPF
program on their listening socket (socket(7), SO_ATTACH_FILTER), which needs no privileges, drops every attempt to
connect (a SYN, RFC 9293) unless it comes from a port of 127.0.0.1 that the guard holds at that moment. No other user
can hold the same port meanwhile. Existing connections are not affected. A dropped SYN gets no answer: to a stranger
there is nothing at this port.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_SO_ATTACH_FILTER = 26
_LOOPBACK = 0x7F000001
_NET = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF: offsets from here on are in the IP header, others in the TCP header
_LD_W, _LD_H, _LD_B, _AND, _JEQ, _JSET, _RET = 0x20, 0x28, 0x30, 0x54, 0x15, 0x45, 0x06
_PASS, _DROP = 0xFFFFFFFF, 0
MOST = 64  # simultaneous connection attempts: the kernel limits the length of a filter


class FilteredListener:
    """A listening socket on loopback that only the guard can connect to.

    Args:
        listener: the socket, or a copy of it; this object owns and closes it.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.port = int(listener.getsockname()[1])
        self.ports: set[int] = set()  # of the guard's connections that are being set up
        try:
            attach(listener, ())
            self.filtered = True
        except OSError:
            self.filtered = False  # the kernel has no filters; network.py reports it

    @contextmanager
    def admitted(self) -> Iterator[socket.socket]:
        """Provide a non-blocking socket that may connect to the server in the block; closed if the block fails.

        Raises:
            BlockingIOError: too many connections are being set up.
        OSError: no port, or no file descriptor.
        """
        if len(self.ports) >= MOST:
            raise BlockingIOError(errno.EAGAIN, "too many connections are being set up")
        outbound = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        port = 0
        try:
            outbound.bind(("127.0.0.1", 0))
            port = outbound.getsockname()[1]
            self.ports.add(port)
            self._allow()
            yield outbound
        except BaseException:
            outbound.close()
            raise
        finally:
            self.ports.discard(port)
            with suppress(OSError):  # out of memory: the next one sets the filter again
                self._allow()

    def close(self) -> None:
        """Close this copy of the socket; the server goes on listening."""
        self.listener.close()

    def _allow(self) -> None:
        if self.filtered:
            attach(self.listener, self.ports)


def attach(listener: socket.socket, ports: Iterable[int]) -> None:
    """Drop every SYN except those from these ports of 127.0.0.1.

    Raises:
        OSError: the kernel has no such filters, or the filter is too long for it.
    """
    program = b"".join(struct.pack("=HBBI", *step) for step in _program(sorted(ports)))
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and their address
    listener.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    )


def _program(ports: list[int]) -> list[tuple[int, int, int, int]]:
    """Return the filter's instructions: (operation, jump if true, jump if false, operand)."""
    return [
        (_LD_B, 0, 0, 13),  # the flags of TCP
        (_AND, 0, 0, 0x12),  # SYN and ACK
        (_JEQ, 1, 0, 0x02),  # only SYN: an attempt to connect
        (_RET, 0, 0, _PASS),
        (_LD_B, 0, 0, _NET),
        (_AND, 0, 0, 0xF0),
        (_JEQ, 1, 0, 0x40),  # IPv4
        (_RET, 0, 0, _DROP),
        (_LD_W, 0, 0, _NET + 12),  # source address
        (_JEQ, 1, 0, _LOOPBACK),
        (_RET, 0, 0, _DROP),
        (_LD_H, 0, 0, 0),  # source port
        *(step for port in ports for step in ((_JEQ, 0, 1, port), (_RET, 0, 0, _PASS))),
        (_RET, 0, 0, _DROP),
    ]
