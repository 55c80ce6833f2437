"""torchft's parameter servers in a run: closed to strangers, and reported. Needs no change to the script.

A server is asked through the guards, and meets its clients in the group's store. Rank 0 of a group
reports `serving` for the first ParameterServer that it makes, then `served` with its step, and `session` for its own
first session with a server (protocol/messages.py).
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

from ftslurm.guard.gateway import Gateway
from ftslurm.protocol import addresses, messages, outbox
from ftslurm.worker.closed_servers import admitted_server, store, through, within
from ftslurm.worker.onlooker import Onlooker, quietly

EVERY_S = 1.0  # `served` is sent at most this often


class Sessions(Onlooker):
    """Watches the first server of this process, or its first session with a server."""

    _server: Any = None
    _step: int | None = None  # the last report of the server
    _opened = False

    @quietly
    def serves(self, server: Any) -> None:
        """Report a server."""
        if self._server is None:
            self._server = server
            outbox.say(messages.Serving(server.address()))
            threading.Thread(target=self._watch, name="ftslurm-served", daemon=True).start()

    @quietly
    def opened(self) -> None:
        """Report the first session with a server."""
        if not self._opened:
            self._opened = True
            outbox.say(messages.SessionOpened())

    @quietly
    def flush(self) -> None:
        """Report the server's step if it has changed. Any thread may call it at any time."""
        step = getattr(self._server, "step", None)
        if type(step) is int and step != self._step:
            self._step = step
            outbox.say(messages.Served(step))

    def _watch(self) -> None:
        while True:
            self.flush()
            time.sleep(EVERY_S)


def install(gateway: Gateway, sessions: Sessions) -> None:
    """Have scripts get a ParameterServer that is closed to strangers and watched.

    torchft builds a session's address from the machine's name and the port of the server's own store, and gives it to
    both sides.
    """
    module: Any = importlib.import_module("torchft.parameter_server")
    no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    base: Any = admitted_server(module._IPv6HTTPServer, gateway, lambda: addresses.SERVER)

    class Server(base):  # type: ignore[misc]
        def handle_error(self, *request: Any) -> None:
            # torchft's handler closes the connection before the session, and http.server flushes it after that.
            if not isinstance(sys.exc_info()[1], ValueError):
                super().handle_error(*request)

    class RunParameterServer(module.ParameterServer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            sessions.serves(self)

        def address(self) -> str:
            return f"http://{gateway.reserve()}/{addresses.SERVER}"

        def _handle_session(self, session_id: str, store_addr: str) -> None:
            super()._handle_session(session_id, within(gateway, store_addr))

        @classmethod
        def new_session(cls, address: str) -> Any:
            group = super().new_session(address)
            sessions.opened()
            return group

    def urlopen(address: str) -> io.StringIO:
        way = through(gateway, address)
        with no_proxy.open(way if way == address else f"{way}/new_session") as answer:
            told = json.load(answer)
        return io.StringIO(json.dumps(told | {"store_addr": within(gateway, told["store_addr"])}))

    def public(part: int) -> str:
        return str(store.public).rpartition(":")[part]

    module.ParameterServer, module._IPv6HTTPServer = RunParameterServer, Server
    # torchft names the store HOST:PORT/session/ID. The group's is at HOST:PORT/store; the server needs none of its own.
    module.socket = SimpleNamespace(gethostname=lambda: public(0))
    module.TCPStore = lambda **_: SimpleNamespace(port=public(2))
    module.urllib = SimpleNamespace(request=SimpleNamespace(urlopen=urlopen))
