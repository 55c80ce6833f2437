"""Reports torchft's parameter servers and their sessions. Needs no change to the script.

`Observer.install` wraps three methods of `torchft.parameter_server.ParameterServer`; each runs unchanged. Rank 0 of a
group reports `serving` for the first ParameterServer that it makes, then `served`, and `session` for its own sessions
with a server (protocol/messages.py).
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ftslurm.protocol import messages, outbox
from ftslurm.worker import patch_fit

EVERY_S = 1.0  # `served` and `session` are sent at most this often


class Observer:
    """Watches the first server of this process, or its sessions with a server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._server: Any = None
        self._open = 0
        self._served: tuple[int, int | None] | None = None  # the last report of the server
        self._sessions = 0
        self._told_at = float("-inf")  # time of the last report of sessions

    def install(self, module: Any = None) -> None:
        """Watch every ParameterServer of this process.

        Raises:
            patch_fit.Misfit: this torchft has none, or another one, which is left unchanged.
        """
        module = module or importlib.import_module("torchft.parameter_server")
        patch_fit.require(
            module, "ParameterServer._handle_session()", "ParameterServer.new_session()", "ParameterServer.address()"
        )
        kind = module.ParameterServer
        made, handle, new_session = kind.__init__, kind._handle_session, kind.__dict__["new_session"].__func__

        @functools.wraps(made)
        def init(server: Any, *args: Any, **kwargs: Any) -> None:
            made(server, *args, **kwargs)
            self._guarded(self._has_made, server)

        @functools.wraps(handle)
        def handle_session(server: Any, *args: Any, **kwargs: Any) -> None:
            self._count(+1)
            try:
                handle(server, *args, **kwargs)
            finally:
                self._count(-1)

        @functools.wraps(new_session)
        def opened(cls: Any, *args: Any, **kwargs: Any) -> Any:
            group = new_session(cls, *args, **kwargs)
            self._guarded(self._has_opened)
            return group

        kind.__init__, kind._handle_session, kind.new_session = init, handle_session, classmethod(opened)

    def flush(self) -> None:
        """Report the server's state if it has changed. Any thread may call it at any time."""
        self._guarded(self._tell_served)

    def _count(self, more: int) -> None:
        with self._lock:
            self._open += more

    def _has_made(self, server: Any) -> None:
        with self._lock:
            if self._server is not None:
                return
            self._server = server
        outbox.say(messages.Serving(server.address()))
        threading.Thread(target=self._watch, name="ftslurm-served", daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.flush()
            time.sleep(EVERY_S)

    def _tell_served(self) -> None:
        step = getattr(self._server, "step", None)
        step = step if isinstance(step, int) and not isinstance(step, bool) else None
        with self._lock:
            if self._server is None or self._served == (self._open, step):
                return
            self._served = (self._open, step)
        outbox.say(messages.Served(*self._served))

    def _has_opened(self) -> None:
        with self._lock:
            self._sessions += 1
            if self._clock() < self._told_at + EVERY_S:
                return
            self._told_at = self._clock()
        outbox.say(messages.SessionOpened(self._sessions))

    def _guarded(self, tell_it: Callable[..., None], *args: Any) -> None:
        try:
            tell_it(*args)
        except Exception as error:
            logging.getLogger(__name__).warning("the parameter server cannot be observed: %r", error)
