"""Which network the nodes of a run use among themselves (cluster.interface): what a node announces as its own address,
where its servers listen, and the interface that Gloo and NCCL get.

Each worker, and the Lighthouse, finds this out on its own node before anything heavy is imported. Nothing is changed
where the name of the node is good enough: Gloo takes the interface of that name by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import glob

from ftslurm.guard.processes import read
from ftslurm.words import listed

WANTED = "FTSLURM_INTERFACE"  # the variable that brings cluster.interface to the nodes; unset: names, as they are
AUTO = "auto"
OUTSIDE = ("203.0.113.1", "2001:db8::1")  # reserved for documentation: they show where the default route leads
NET = "/sys/class/net"
INFINIBAND = "32"  # ARPHRD_INFINIBAND, in the file `type` of an interface
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_UP = 0x8913, 0x8915, 1
_LINK_LOCAL, _UNUSABLE = 0x20, 0x48  # of /proc/net/if_inet6: the scope; the flags tentative and dadfailed

Interfaces = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Reach:
    """How other nodes of the run reach this one."""

    host: str  # what is announced: a host name or an address, an IPv6 address in brackets
    address: str = ""  # where its servers listen; "": at all addresses
    interface: str | None = None  # for Gloo and NCCL; None: their own choice
    gloo: bool = True  # whether Gloo is told: not where its own choice is right, and the interface would be another

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of Gloo, TensorPipe and NCCL that are not set in `environ`.

        NCCL takes an InfiniBand interface by itself, which is then not replaced by a slower one that was only found. Of
        several rails it gets all, unless the user has named one: told nothing, it may take a bridge of containers.
        """
        if self.interface is None:
            return {}
        told = {"GLOO_SOCKET_IFNAME": self.interface, "TP_SOCKET_IFNAME": self.interface} if self.gloo else {}
        if self.address or not has_infiniband():
            found = [self.interface] if self.address else rails(self.interface)
            told["NCCL_SOCKET_IFNAME"] = f"={','.join(found)}"  # without the sign these are beginnings of names
        return {name: value for name, value in told.items() if not environ.get(name)}


def reach(environ: Mapping[str, str]) -> Reach:
    """Return how this node is reached, by cluster.interface.

    Raises:
        RuntimeError: it has none of the interfaces.
    """
    wanted = environ.get(WANTED, "")
    if not wanted:
        local = environ.get("FTSLURM_CLUSTER") == "local"
        return Reach("127.0.0.1", "127.0.0.1") if local else Reach(socket.gethostname())
    if wanted == AUTO:
        return automatic(socket.gethostname(), known(), environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
    return named(wanted.split(","), known())


def named(wanted: Iterable[str], there: Interfaces) -> Reach:
    """Return the first of the wanted interfaces that is up; each is a name, or the beginning of one.

    Raises:
        RuntimeError: there is none. The message is the same on nodes that have the same interfaces, so that a run with
            a wrong setting ends at once: every group fails in the same way.
    """
    for word in wanted:
        for name in (word, *(name for name in there if name.startswith(word))):
            if there.get(name):
                return Reach(bracketed(there[name][0]), there[name][0], name)
    has = ", ".join(name for name, addresses in there.items() if addresses) or "none"
    raise RuntimeError(
        f"the node has no interface {listed(wanted, 'or')} that is up and has an address; it has {has}: set "
        f"cluster.interface to one that every node has, to several in order, as [ib0,eth0], or to auto"
    )


def automatic(host: str, there: Interfaces, controller: str) -> Reach:
    """Return how this node is reached if the user does not say it.

    By its own name, if that stands for an address of a network. On Debian it stands for 127.0.1.1, and in containers
    often for nothing: then by the address from which the route to the controller's node starts, or the default route.

    Args:
        controller: the address of the controller's node; "": not known.
    """
    found = resolve(host)
    own = [address for address in found if not is_loopback(address)]
    for address in own:
        if (name := of(address, there)) is not None:
            return Reach(host, interface=name, gloo=there[name][0] == address)
    if own:
        return Reach(host)  # it is translated on the way, or is an alias
    for other in filter(None, (controller, *OUTSIDE)):
        start = route_to(other)
        if start is not None and (name := of(start, there)) is not None:
            is_sure = other == controller or not found  # else the name may be of use to others
            return Reach(bracketed(start) if is_sure else host, interface=name)
    return Reach(host)


# --- what a node has --------------------------------------------------------------------------------------------------


def known() -> dict[str, tuple[str, ...]]:
    """Return the addresses of each interface that is up, IPv4 before IPv6; no link-local ones."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, name.encode().ljust(40, b"\0"))
                if not struct.unpack_from("=H", answer, 16)[0] & _IFF_UP:
                    continue
                found[name] = []
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, name.encode().ljust(40, b"\0"))
                found[name].append(socket.inet_ntoa(answer[20:24]))
    for address, name in _ipv6_addresses():
        if name in found:
            found[name].append(address)
    return {name: tuple(addresses) for name, addresses in found.items()}


def _ipv6_addresses() -> Iterable[tuple[str, str]]:
    with contextlib.suppress(ValueError):
        for line in read("/proc/net/if_inet6").splitlines():
            digits, _, _, scope, flags, name = line.split()
            if int(scope, 16) != _LINK_LOCAL and not int(flags, 16) & _UNUSABLE:
                yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), name


def rails(name: str) -> list[str]:
    """Return an interface, and the others of this node that are up, hardware of their own, and as fast."""
    hardware = (one for one, its in known().items() if one != name and not all(map(is_loopback, its)))
    return [
        name,
        *(
            one
            for one in hardware
            if os.path.exists(f"{NET}/{one}/device") and read(f"{NET}/{one}/speed") == read(f"{NET}/{name}/speed")
        ),
    ]


def speed(name: str) -> float | None:
    """Return the speed of an interface in Gb/s; None: the kernel does not know it."""
    mbit = read(f"{NET}/{name}/speed").strip()
    if mbit.isdecimal():
        return int(mbit) / 1000
    rates = (read(path) for path in glob(f"{NET}/{name}/device/infiniband/*/ports/*/rate"))
    return max((float(found[0]) for rate in rates if (found := re.match(r"\d+", rate))), default=None)


def has_infiniband() -> bool:
    """Return whether an interface of this node that is up is one of InfiniBand."""
    return any(addresses and read(f"{NET}/{name}/type").strip() == INFINIBAND for name, addresses in known().items())


def resolve(host: str) -> list[str]:
    """Return the addresses of a host; none: it has no name that can be looked up here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    return [str(where[0]) for *_, where in found]


def route_to(address: str) -> str | None:
    """Return the own address from which packets to another one start; None: none, or it is loopback. Sends nothing."""
    try:
        with socket.socket(family(address), socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            start = str(sock.getsockname()[0])
    except OSError:
        return None
    return None if is_loopback(start) else start


def family(address: str) -> socket.AddressFamily:
    """Return the family of a socket for an address; "": for all addresses, also where the kernel has no IPv6."""
    six = ":" in address if address else socket.has_dualstack_ipv6()
    return socket.AF_INET6 if six else socket.AF_INET


def is_loopback(address: str) -> bool:
    """Return whether other machines cannot use an address: it is loopback or link-local."""
    return address.startswith(("127.", "169.254.", "fe80:")) or address in ("::1", "0.0.0.0", "::")  # noqa: S104


def bracketed(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def of(address: str, there: Interfaces) -> str | None:
    """Return the interface that has an address; not loopback, which may have addresses of services."""
    return next((name for name, addresses in there.items() if address in addresses and name != "lo"), None)
