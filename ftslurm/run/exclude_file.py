"""cluster.exclude_file: the nodes that runs have found broken, for the runs after them. A line of JSON for each.

A person may add lines with names, as n7 or n[1-4]: these nodes are excluded until the line is gone. All this is a hint:
what cannot be read is told once, and the run goes on without it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from ftslurm.config.schema import Config
from ftslurm.errors import Distrusted
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import number, text
from ftslurm.security import owned_files
from ftslurm.security.json_text import read_object
from ftslurm.security.names import is_node
from ftslurm.slurm.hosts import expand_hosts

VALID_S = 7 * 86400.0
MOST_BYTES = 1 << 20
MOST_NODES = 32  # the newest
_MOST_REASON = 200


def read(config: Config, run: RunDir) -> tuple[list[str], str]:
    """Return the nodes that other runs than this one have found broken, the newest first; and what to tell a person."""
    if config.cluster.exclude_file is None:
        return [], ""
    path, bad, found, by_hand = Path(config.cluster.exclude_file), 0, dict[str, str](), dict[str, str]()
    try:
        owned_files.check_way(path, config.run.trust, made=True)
        said = owned_files.read_text(path, most=MOST_BYTES)
    except FileNotFoundError:
        return [], ""
    except (OSError, Distrusted) as error:
        return [], f"{path} is not used (cluster.exclude_file): {getattr(error, 'strerror', None) or error}"
    for line in said.splitlines():
        if not line.startswith("{"):
            words = ",".join(line.partition("#")[0].split())
            with suppress(ValueError):
                names = expand_hosts(words)
                if all(map(is_node, names)):
                    by_hand |= dict.fromkeys(names, words)
                    continue
        row = read_object(line) or {}
        node, of, at = text(row, "node"), text(row, "run"), number(row, "time")
        if node is None or not is_node(node) or of is None or at is None:
            bad += 1
        elif of != run.root.name and abs(time.time() - at) < VALID_S:
            found.pop(node, None)
            day = time.strftime("%d %b %H:%M", time.localtime(at))
            found |= {node: f"{node} ({why}; {of}, {day})"} if (why := text(row, "reason")) else {}
    nodes = [node for node in reversed(found) if node not in by_hand][:MOST_NODES]
    known, named = ", ".join(found[node] for node in nodes), ", ".join(dict.fromkeys(by_hand.values()))
    told = [f"excluded by hand (cluster.exclude_file): {named}"] if by_hand else []
    told += [f"found broken by other runs (cluster.exclude_file): {known}"] if nodes else []
    told += [f"{bad} damaged lines of {path} are not used (cluster.exclude_file)"] if bad else []
    return [*by_hand, *nodes], "; ".join(told)


def write(config: Config, run: RunDir, node: str, reason: str) -> None:
    """Note a node; without a reason: that it is not broken after all.

    Raises:
        OSError: the file cannot be written.
        Distrusted: others could replace it.
    """
    if config.cluster.exclude_file is None:
        return
    path = Path(config.cluster.exclude_file)
    row = {"node": node, "reason": reason[:_MOST_REASON], "run": run.root.name, "time": round(time.time(), 3)}
    owned_files.check_way(path, config.run.trust, made=True)
    fd = owned_files.open_fd(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with os.fdopen(fd, "wb", buffering=0) as file:
        file.write(f"{json.dumps(row)}\n".encode())  # in one call: other runs may be writing, too
