"""Closes torchft's servers to everything but the run.

torchft's manager and torch's TCPStore listen on every interface and accept every client: a stranger could read a
group's addresses in its store, join its quorum, or end it with a `Kill`. Here they listen on loopback, where only their
guard can connect (guard/loopback_filter.py). They are reached at HOST:PORT/SERVICE through two guards, which prove to
each other that they are of this run (guard/admission.py, guard/forwarder.py). torchft is given loopback addresses
wherever it connects to one of them, so its own code, in Rust or in a child process, is unchanged.

Servers in Python do not listen at all: the guard gives them its connections. So it is with what serves the state
(transport.py) and the parameter server (parameter_sessions.py, `admitted_server`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from ftslurm.guard.gateway import Gateway, taken
from ftslurm.guard.sockets import end_if_gone
from ftslurm.protocol import addresses

GONE_S = 15  # the node of a peer that answers nothing is gone: a healer and its donor would wait for a minute

store = SimpleNamespace(here="", public="")


def begin(here: str, public: str) -> None:
    """Note the address of the group's store, before the script starts.

    Args:
        here: HOST:PORT for this worker.
        public: HOST:PORT/store for other groups.
    """
    store.here, store.public = here, public


# --- managers ---------------------------------------------------------------------------------------------------------


def close_managers(gateway: Gateway) -> None:
    """Publish the server of each Manager, and have torchft connect to servers through the guard."""
    module: Any = importlib.import_module("torchft.manager")
    make_server, make_client = module.ManagerServer, module.ManagerClient
    own: dict[str, Any] = {}  # clients of this process's own servers, connected before the filter was attached

    @functools.wraps(make_server, updated=())
    def server(*, bind: str, store_addr: str, **words: Any) -> _Server:
        place = gateway.reserve()
        words["hostname"] = f"{place}/manager"  # torchft appends a colon and the port
        public = store.public if store.public and store_addr == store.here else store_addr
        made = make_server(bind=f"127.0.0.1:{bind.rpartition(':')[2]}", store_addr=public, **words)
        address = made.address()
        port = int(address.rpartition(":")[2].strip("/"))
        own[address] = make_client(f"http://127.0.0.1:{port}", connect_timeout=words["connect_timeout"])
        service = f"{addresses.MANAGER}{port}"
        gateway.publish(service, port)
        return _Server(made, lambda: gateway.withdraw(service))

    @functools.wraps(make_client, updated=())
    def client(addr: str, *args: Any, **words: Any) -> Client:
        return Client(own.pop(addr, None) or make_client(through(gateway, addr), *args, **words), reachable)

    def reachable(quorum: Any) -> None:
        quorum.store_address = through(gateway, quorum.store_address)

    module.ManagerServer, module.ManagerClient = server, client
    # Ranks wait for the Manager of rank 0, which may prepare data first. If it dies, the guards end the others.
    module.TCPStore = functools.partial(module.TCPStore, timeout=timedelta(days=365))


def through(gateway: Gateway, address: str) -> str:
    """Return the address of a forwarder to a server of the run; other addresses unchanged."""
    where = addresses.read(address)
    if where is None or where.service is None:
        return address
    scheme, mark, _ = address.partition("://")
    return (scheme + mark if mark else "") + gateway.forwarder(address)


class _Server:
    """torchft's ManagerServer, with a callback for its end."""

    def __init__(self, server: Any, ended: Callable[[], None]) -> None:
        self._server = server
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def shutdown(self) -> None:
        with suppress(OSError):
            self._ended()
        self._server.shutdown()


class Client:
    """torchft's ManagerClient, with a callback for its answers, before torchft uses them.

    Args:
        client: torchft's.
        answered: called with each quorum.
        has_stepped: tells whether the run has committed a step. Until then a quorum that does not come is asked for
            again: another group may prepare data for any time, and who waits for it has not failed.
    """

    def __init__(
        self,
        client: Any,
        answered: Callable[[Any], object] = bool,
        has_stepped: Callable[[], object] = lambda: True,
    ) -> None:
        self._client = client
        self.reported: int | None = None  # the step to report to the Lighthouse, or None for the Manager's own
        self.answered = answered
        self.has_stepped = has_stepped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **words: Any) -> Any:
        if self.reported is not None:
            words["step"] = self.reported
        while True:
            try:
                quorum = self._client._quorum(*args, **words)
            except TimeoutError:
                if self.has_stepped():
                    raise
                continue
            self.answered(quorum)
            return quorum


# --- servers in Python ------------------------------------------------------------------------------------------------


def admitted_server(base: Any, gateway: Gateway, name: Callable[[], str]) -> Any:
    """Return an HTTP server like `base` that does not listen: it serves the connections that its guard has admitted.

    Args:
        name: returns the service of the next one.
    """

    class AdmittedServer(base):  # type: ignore[misc]
        socket: Any
        address_family = socket.AF_INET  # of a socket that is not used: some kernels have no IPv6

        def server_bind(self) -> None:
            self.socket.close()
            self.service = name()
            self.socket = gateway.take_over(self.service)

        def server_activate(self) -> None:
            pass

        def get_request(self) -> tuple[socket.socket, Any]:
            _, connection = taken(self.socket)
            if connection is None:
                raise OSError("the guard is gone")
            end_if_gone(connection, GONE_S)
            return connection, connection.getpeername()

    return AdmittedServer


# --- process groups ---------------------------------------------------------------------------------------------------


def close_process_groups(gateway: Gateway) -> None:
    """Have process groups meet in a group's store, instead of hosting stores of their own.

    torchft 0.2.0 does so already. In torchft 0.3 each process group hosts a TCPStore on all interfaces, and names it in
    the handle that the Lighthouse gives to the others. Here the handle names the group's store instead, with the id of
    the process group as prefix, because a group may have several, and with a number of its own: a handle is for one
    quorum, and what the members of an earlier one have left there, perhaps under the same quorum id, is elsewhere.
    """
    module: Any = importlib.import_module("torchft.process_group")
    module.TCPStore = functools.partial(_client_store, module.TCPStore)
    if hasattr(module.ProcessGroup, "configure"):  # of torchft 0.2
        return
    rendezvous, numbers = module._rendezvous, itertools.count()

    def get_reconfigure_handle(group: Any) -> str:
        place = f"{store.public or store.here}/{group._handle_id()}/{next(numbers)}"
        return json.dumps({"id": group._handle_id(), "store": place, "global_rank": group._global_rank})

    @functools.wraps(rendezvous)
    def meet(*args: Any, **words: Any) -> Any:
        met = rendezvous(*args, **words)
        return dataclasses.replace(met, store_addr=within(gateway, met.store_addr))

    module.ProcessGroup.get_reconfigure_handle, module._rendezvous = get_reconfigure_handle, meet


def _client_store(make: Any, *args: Any, **words: Any) -> Any:
    """Create torch's TCPStore for a process group, which may only be a client.

    Raises:
        RuntimeError: the store would listen.
    """
    if words.get("is_master") or any(word is True for word in args):
        raise RuntimeError("a process group of torchft wants a store of its own, which strangers could reach: refused")
    return make(*args, **words)


def within(gateway: Gateway, address: str) -> str:
    """Translate a guard's address of a store, HOST:PORT/store/PREFIX, to that of a forwarder; others stay unchanged."""
    place, mark, prefix = address.partition(f"/{addresses.STORE}/")
    return f"{through(gateway, f'{place}/{addresses.STORE}')}/{prefix}" if mark else address
