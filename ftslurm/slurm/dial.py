"""Dials the slurmds of nodes: `python -m ftslurm.slurm.dial sinfo ...` prints the nodes where nothing answers, as JSON.

A kernel accepts or refuses a connection while every process of its node is stopped or starved. So silence means that
the node has no power, no network or no kernel. The arguments are the command that prints node|address|port|.
"""

import errno
import json
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import compress

PATIENCE_S = 1.5  # a packet that was lost is sent again after 1 s
STALL_S = 1.0  # a process that has waited for longer than it meant to has stood still, and knows nothing


def is_silent(host: str, port: str | int) -> bool:
    """Return whether nothing answers at an address. A name that does not resolve says nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return False
    began = time.monotonic()
    with socket.socket(family, kind, protocol) as dialled:
        dialled.settimeout(PATIENCE_S)
        try:
            dialled.connect(address)
        except TimeoutError:
            return time.monotonic() < began + PATIENCE_S + STALL_S
        except OSError as error:
            return error.errno == errno.EHOSTUNREACH
    return False


if __name__ == "__main__":
    slurm = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True)  # it is there, and reached
    rows = set(re.findall(r"^([^|\n]+)\|([^|\n]+)\|([0-9]+)\|$", slurm.stdout, re.MULTILINE))
    nodes, hosts, ports = zip(*rows, strict=True)
    with ThreadPoolExecutor(256) as pool:
        print(json.dumps([*compress(nodes, pool.map(is_silent, hosts, ports))]))
