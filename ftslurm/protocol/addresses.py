"""The addresses of the servers of a run: HOST:PORT/SERVICE, with or without http:// before it.

PORT is that of the guard behind which the server is (guard/admission.py), SERVICE the name that the guard is asked for.
An address without one of these services is not of the run, and is used as it is.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ftslurm.protocol.value_class import Value

LIGHTHOUSE, SUCCESSOR, STORE, SERVER = "lighthouse", "successor", "store", "server"
MANAGER, CHECKPOINT = "manager:", "checkpoint:"  # and a number, for a process may have several
_SERVICE = re.compile(rf"{LIGHTHOUSE}|{SUCCESSOR}|{STORE}|{SERVER}|({MANAGER}|{CHECKPOINT})\d+", re.ASCII)


class Address(Value):
    """The address of a server."""

    host: str
    port: int
    service: str | None = None  # None: no server of this run's guards

    @property
    def dialled(self) -> str:
        """The text that both sides of a handshake prove."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.service}"


def read(text: str) -> Address | None:
    """An address from what torchft, the controller or a script says; None: it is none."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return None
    if not host:
        return None
    word = parts.path.strip("/")
    return Address(host, port, word if _SERVICE.fullmatch(word) else None)
