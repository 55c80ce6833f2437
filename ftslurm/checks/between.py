"""Whether nodes reach each other, and by which network: `python -m ftslurm.checks.between FOLDER COUNT` on each.

Each listens at a port that the kernel chooses, as the servers of a run do, and dials all addresses of the others.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import permutations
from math import inf
from pathlib import Path

from ftslurm.checks import node_facts
from ftslurm.checks.finding import Finding, fail, ok, warn
from ftslurm.guard import interfaces, processes
from ftslurm.security import owned_files
from ftslurm.security.json_text import read_object
from ftslurm.words import listed

DIAL_S = 3.0
PATIENCE_S = 20.0  # for the others: their tasks start at the same time
SILENT = {"": "it has not said its port within 20 s"}
OPEN = "let through, between nodes, the ports of net.ipv4.ip_local_port_range"


@dataclass(frozen=True, eq=False)
class Node:
    """What a node has, and what it has reached."""

    name: str
    host: str  # what a run would announce
    interface: str  # that it stands for; "": not known
    port: int
    addresses: Mapping[str, str]  # of each interface
    speeds: Mapping[str, float]  # of interfaces, in Gb/s, as far as the kernel knows them
    # Why others were not reached: by their name, and through which of their interfaces ("": by what they announce).
    # "": they were.
    dialled: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def speed(self, interface: str) -> str:
        """Return an interface as a person reads it."""
        known = self.speeds.get(interface)
        return f"{interface or 'an unknown interface'} ({'speed unknown' if known is None else f'{known:g} Gb/s'})"


def compare(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield whether nodes reach each other, and whether another network is faster than the one they announce."""
    names = listed(sorted(node.name for node in nodes), "and")
    missed = {(one, other.name): one.dialled.get(other.name, SILENT) for one, other in permutations(nodes, 2)}
    shared = set.intersection(*(set(node.addresses) for node in nodes))
    ways = [way for way in shared if not any(tried.get(way, "?") for tried in missed.values())]
    now = nodes[0].interface
    best = max(ways, key=lambda way: min(node.speeds.get(way, 0.0) for node in nodes), default="")
    if silent := [f"{one.name} does not reach {other}: {why['']}" for (one, other), why in missed.items() if why[""]]:
        cure = f"set cluster.interface={best}, or ask" if best else "ask"
        yield fail("reach", "; ".join(silent[:3]), f"{cure} your administrator to {OPEN}")
    else:
        yield ok("reach", f"{names} reach each other's ports by {nodes[0].speed(now)}")
    if best and all(node.speeds.get(best, 0.0) > node.speeds.get(now, inf) for node in nodes):
        slow = f"the names of {names} lead to {nodes[0].speed(now)}, and {nodes[0].speed(best)} connects them, too"
        yield warn("cable", slow, f"set cluster.interface={best}")


def read(lines: str) -> list[Node]:
    """Return what the nodes have printed."""
    found = list[Node]()
    for line in lines.splitlines():
        with suppress(TypeError):  # what a profile or a prolog prints is none
            found.append(Node(**(read_object(line.encode()) or {})))
    return found


def _dial(node: Node) -> dict[str, str]:
    """Dial a node by what it announces, and by each interface that our interface of the same name leads to.

    Returns:
        For each of these why the node was not reached; "": it was.
    """
    ours = interfaces.known()
    ways = {"": node.host.strip("[]")}
    for name, address in node.addresses.items():
        if interfaces.route_to(address) in ours.get(name, ()):
            ways[name] = address
    found = dict[str, str]()
    for name, address in ways.items():
        try:
            socket.create_connection((address, node.port), DIAL_S).close()
            found[name] = ""
        except TimeoutError:
            found[name] = f"nothing answers at {address}:{node.port}"
        except OSError as error:
            found[name] = f"{address}:{node.port}: {error.strerror or error}"
    return found


def _await(folder: Path, pattern: str, count: int) -> list[Path]:
    deadline = time.monotonic() + PATIENCE_S
    while len(found := sorted(folder.glob(pattern))) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def main(folder: Path, count: int) -> None:
    """Dial the others, and print what this node is."""
    name = processes.node_of(os.environ) or socket.gethostname()
    _, there, _ = node_facts.network()
    kind = interfaces.family("")
    with socket.create_server(("", 0), family=kind, dualstack_ipv6=kind == socket.AF_INET6) as server:
        reach = interfaces.reach({**os.environ, interfaces.WANTED: interfaces.AUTO})
        speeds = {one: known for one in there if (known := interfaces.speed(one)) is not None}
        me = Node(name, reach.host, reach.interface or "", server.getsockname()[1], there, speeds)
        owned_files.replace_file(folder / f"{name}.node", json.dumps(asdict(me)).encode())
        others = [Node(**json.loads(path.read_text())) for path in _await(folder, "*.node", count)]
        others = [other for other in others if other.name != name]
        with ThreadPoolExecutor(32) as pool:
            dialled = dict(zip((other.name for other in others), pool.map(_dial, others), strict=True))
        print(json.dumps(asdict(me) | {"dialled": dialled}), flush=True)
        (folder / f"{name}.done").touch()
        _await(folder, "*.done", count)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
