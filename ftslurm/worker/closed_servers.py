"""Closes torchft's servers to everything but the run.

torchft's manager, its parameter server and torch's TCPStore listen on every interface and accept every client: a
stranger could read a group's addresses in its store, join its quorum, or end it with a `Kill`. Here they listen on
loopback, where only their guard can connect (guard/loopback_filter.py). They are reached at HOST:PORT/SERVICE through
two guards, which prove to each other that they are of this run (guard/admission.py, guard/forwarder.py). torchft is
given loopback addresses wherever it connects to one of them, so its own code, in Rust or in a child process, is
unchanged.

The checkpoint server is in closed_transport.py: its data would be too much for a guard.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ftslurm.guard.gateway import Gateway, listener_at, publish
from ftslurm.protocol import addresses
from ftslurm.worker import patch_fit

_store = SimpleNamespace(here="", public="")


def begin(here: str, public: str) -> None:
    """Note the address of the group's store, before the script starts.

    Args:
        here: HOST:PORT for this worker.
        public: HOST:PORT/store for other groups.
    """
    _store.here, _store.public = here, public


def install(gateway: Gateway) -> None:
    """Close the servers that scripts create from now on.

    Raises:
        patch_fit.Misfit: this torchft creates its servers or its clients in another way; it must not be used.
    """
    _close_managers(gateway, importlib.import_module("torchft.manager"))
    _close_process_groups(gateway, importlib.import_module("torchft.process_group"))
    _close_parameter_servers(gateway, importlib.import_module("torchft.parameter_server"))


# --- managers ---------------------------------------------------------------------------------------------------------


def _close_managers(gateway: Gateway, module: Any) -> None:
    """Publish the server of each Manager, and have torchft connect to servers through the guard."""
    patch_fit.require(
        module,
        "ManagerServer(hostname, bind, store_addr, connect_timeout)",
        *("ManagerServer.address()", "ManagerServer.shutdown()", "ManagerClient(addr, connect_timeout)"),
        *("ManagerClient._quorum()", "Manager.ManagerServer", "Manager.ManagerClient"),
    )
    patch_fit.require(importlib.import_module("torchft._torchft"), "QuorumResult.store_address")
    make_server, make_client = module.ManagerServer, module.ManagerClient
    own: dict[str, Any] = {}  # clients of this process's own servers, connected before the filter was attached

    @functools.wraps(make_server, updated=())
    def server(*, bind: str, store_addr: str, **words: Any) -> _Server:
        place = gateway.reserve()
        words["hostname"] = f"{place}/manager"  # torchft appends a colon and the port
        public = _store.public if _store.public and store_addr == _store.here else store_addr
        made = make_server(bind=f"127.0.0.1:{bind.rpartition(':')[2]}", store_addr=public, **words)
        address = made.address()
        port = int(address.rpartition(":")[2].strip("/"))
        own[address] = make_client(f"http://127.0.0.1:{port}", connect_timeout=words["connect_timeout"])
        with listener_at(port) as listener:
            publish(gateway, addresses.manager(port), listener.fileno(), port)
        return _Server(made, lambda: gateway.withdraw(addresses.manager(port)))

    @functools.wraps(make_client, updated=())
    def client(addr: str, *args: Any, **words: Any) -> _Client:
        made = own.pop(addr, None) or make_client(through(gateway, addr), *args, **words)
        return _Client(made, gateway)

    module.ManagerServer, module.ManagerClient = server, client


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


class _Client:
    """torchft's ManagerClient, with store addresses in its answers that this process can reach."""

    def __init__(self, client: Any, gateway: Gateway) -> None:
        self._client = client
        self._gateway = gateway

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **words: Any) -> Any:
        quorum = self._client._quorum(*args, **words)
        quorum.store_address = through(self._gateway, quorum.store_address)
        return quorum


# --- process groups ---------------------------------------------------------------------------------------------------


def _close_process_groups(gateway: Gateway, module: Any) -> None:
    """Have process groups meet in a group's store, instead of hosting stores of their own.

    torchft 0.2.0 does so already. In the nightly each process group hosts a TCPStore on all interfaces, and names it in
    the handle that the Lighthouse gives to the others. Here the handle names the group's store instead, with the id of
    the process group as prefix, because a group may have several.
    """
    module.TCPStore = functools.partial(_client_store, module.TCPStore)
    if patch_fit.fits(module, "ProcessGroup.configure(store_addr)"):
        return
    patch_fit.require(
        module,
        *("_rendezvous(opts, handle_id)", "ProcessGroup.get_reconfigure_handle()", "ProcessGroup._rendezvous_store"),
        *("ProcessGroup._handle_id()", "ProcessGroup._global_rank", "ProcessGroup.reconfigure(opts)"),
    )
    rendezvous = module._rendezvous

    def get_reconfigure_handle(group: Any) -> str:
        place = f"{_store.public or _store.here}/{group._handle_id()}"
        return json.dumps({"id": group._handle_id(), "store": place, "global_rank": group._global_rank})

    @functools.wraps(rendezvous)
    def meet(*args: Any, **words: Any) -> Any:
        met = rendezvous(*args, **words)
        return dataclasses.replace(met, store_addr=_within(gateway, met.store_addr))

    module.ProcessGroup.get_reconfigure_handle, module._rendezvous = get_reconfigure_handle, meet


def _client_store(make: Any, *args: Any, **words: Any) -> Any:
    """Create torch's TCPStore for a process group, which may only be a client.

    Raises:
        RuntimeError: the store would listen.
    """
    if words.get("is_master") or any(word is True for word in args):
        raise RuntimeError("a process group of torchft wants a store of its own, which strangers could reach: refused")
    return make(*args, **words)


# --- parameter servers ------------------------------------------------------------------------------------------------


def _close_parameter_servers(gateway: Gateway, module: Any) -> None:
    """Request a ParameterServer's sessions through the guards, and have them meet in the group's store.

    torchft builds a session's address from the machine's name and the port of the server's own store, and gives it to
    both sides.
    """
    patch_fit.require(
        module,
        *("ParameterServer._handle_session(session_id, store_addr)", "ParameterServer.new_session(address)"),
        *("ParameterServer.address()", "ParameterServer.TCPStore", "ParameterServer._IPv6HTTPServer"),
        *("socket.gethostname()", "json.load()", "json.dumps()", "_IPv6HTTPServer.address_family"),
    )
    kind: Any = module.ParameterServer
    base: Any = module._IPv6HTTPServer
    new_session, handle = kind.__dict__["new_session"].__func__, kind._handle_session

    class LoopbackServer(base):  # type: ignore[misc]
        address_family = socket.AF_INET

        def __init__(self, address: tuple[str, int], handler: Any) -> None:
            super().__init__(("127.0.0.1", address[1]), handler)
            publish(gateway, addresses.SERVER, self.socket.fileno(), self.socket.getsockname()[1])

    def address(_: Any) -> str:
        return f"http://{gateway.reserve()}/{addresses.SERVER}"

    @functools.wraps(handle)
    def handle_session(server: Any, session_id: str, store_addr: str) -> None:
        handle(server, session_id, _within(gateway, store_addr))

    @functools.wraps(new_session)
    def opened(cls: Any, address: str) -> Any:
        way = through(gateway, address)
        return new_session(cls, way if way == address else f"{way}/new_session")

    def load(file: Any) -> Any:
        told = json.load(file)
        return told | {"store_addr": _within(gateway, told["store_addr"])}

    module.json = SimpleNamespace(load=load, dumps=json.dumps)
    module.TCPStore, module._IPv6HTTPServer = _GroupStore, LoopbackServer
    module.socket = SimpleNamespace(**(vars(socket) | {"gethostname": lambda: _store.public.rpartition(":")[0]}))
    kind.address, kind._handle_session, kind.new_session = address, handle_session, classmethod(opened)


def _within(gateway: Gateway, address: str) -> str:
    """Translate a guard's address of a store, HOST:PORT/store/PREFIX, to that of a forwarder; others stay unchanged."""
    store, mark, prefix = address.partition(f"/{addresses.STORE}/")
    return f"{through(gateway, f'{store}/{addresses.STORE}')}/{prefix}" if mark else address


class _GroupStore:
    """A client of the group's store, in place of a parameter server's own store."""

    def __init__(self, **_: Any) -> None:
        from torch.distributed import TCPStore

        host, _, port = _store.here.rpartition(":")
        self._client = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
        self.port = _store.public.rpartition(":")[2]  # PORT/store: torchft appends it to the machine's name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
