"""The addresses of the servers of a run: HOST:PORT/SERVICE, with or without http:// before it.

PORT is that of the guard behind which the server is (guard/admission.py), SERVICE the name that the guard is asked for.
An address without one of these services is not of the run, and is used as it is.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ftslurm.protocol.value_class import Value

LIGHTHOUSE, STORE, SERVER, CHECKPOINT = "lighthouse", "store", "server", "checkpoint"
_MANAGER = "manager:"  # and its number, for a process may have several


def manager(number: int) -> str:
    """The service of the manager that listens on this port of its machine's loopback."""
    return f"{_MANAGER}{number}"


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
    known = word in (LIGHTHOUSE, STORE, SERVER) or (word.startswith(_MANAGER) and word[len(_MANAGER) :].isdigit())
    return Address(host, port, word if known else None)
