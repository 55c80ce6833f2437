"""Gives events to a callback class in a process of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ftslurm.config.receivers import folders_of_imports
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.observer.hook_command import TIMEOUT_S, kill_group
from ftslurm.observer.sinks import NotDelivered, Told
from ftslurm.protocol.occurrences import OCCURRENCES
from ftslurm.security import programs

IMPORTS = "FTSLURM_IMPORTS"  # folders in which the module is looked for
IMPORT_S = 60.0  # how long an import may take: it may need torch, from a file server
_END_S = 2.0
_LONGEST = 1000  # characters of a line that a callback prints
log = logging.getLogger("ftslurm.observer")


def _command(name: str, *more: str) -> list[str]:
    return programs.module("ftslurm.observer.callback_process", name, *more)


def check_imports(config: Config, environ: Mapping[str, str]) -> None:
    """Import the callback classes as the observer will; not if cluster.setup may load what they need.

    Raises:
        ConfigError: one of them cannot be imported, or is no callback.
    """
    for name in () if config.cluster.setup else config.hooks.callbacks:
        check_import(name, folders_of_imports(config), environ)


def check_import(name: str, folders: Iterable[str], environ: Mapping[str, str]) -> None:
    """Import a callback class in a process of its own.

    Raises:
        ConfigError: it cannot be imported, or is no callback.
    """
    env = {**environ, IMPORTS: os.pathsep.join(folders)}
    try:
        done = subprocess.run(
            _command(name), env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"hooks.callbacks: {name} could not be imported within {IMPORT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {done.returncode}")
        raise ConfigError(
            f"hooks.callbacks: {name}: {last}; modules are looked for in the script's folder, in the working directory "
            f"and on PYTHONPATH"
        )


class CallbackReceiver:
    """A receiver that has a callback class called for each event; its process is started with the first one."""

    def __init__(self, name: str, run: Path, folders: Iterable[str], env: Mapping[str, str], umask: int) -> None:
        self.name, self.events = f"callback {name}", frozenset(OCCURRENCES)
        self._command, self._umask = _command(name, str(run)), umask
        self._env = {**env, IMPORTS: os.pathsep.join(folders)}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._killed = threading.Lock(), False

    def deliver(self, told: Told) -> None:
        """Call the callback for one event.

        Raises:
            NotDelivered: it raises, takes too long, or its process ends.
        """
        process, new = self._running()
        if new:
            try:
                self._ask(process, b"", IMPORT_S, " while it was imported")
            except NotDelivered:
                kill_group(process)  # it ends by itself; the next event must not meet it before that
                process.wait()
                raise
        self._ask(process, told.json, TIMEOUT_S)

    def kill(self) -> None:
        """End its process; it has a moment to end by itself."""
        with self._lock:
            self._killed, process = True, self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            kill_group(process)

    def _ask(self, process: subprocess.Popen[bytes], message: bytes, within_s: float, what: str = "") -> None:
        try:
            answer = _ask(process, message, time.monotonic() + within_s)
        except TimeoutError:
            kill_group(process)
            process.wait()
            raise NotDelivered(f"killed after {within_s:g} s{what}") from None
        except OSError:
            process.wait()
            raise NotDelivered(f"its process has ended (exit code {process.returncode})") from None
        if answer is not None:
            raise NotDelivered(answer)

    def _running(self) -> tuple[subprocess.Popen[bytes], bool]:
        """Return the process, and whether it has just been started."""
        with self._lock:
            if self._killed:
                raise NotDelivered("the observer ends")
            if self._process is not None and self._process.poll() is None:
                return self._process, False
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    umask=self._umask,
                )
            except OSError as error:
                raise NotDelivered(f"cannot be started: {error.strerror}") from error
            threading.Thread(target=self._log, args=(self._process,), daemon=True).start()
            return self._process, True

    def _log(self, process: subprocess.Popen[bytes]) -> None:
        """Copy what the callback prints to the observer's log."""
        assert process.stderr is not None
        with process.stderr as printed:
            while line := printed.readline(_LONGEST):
                log.info("%s: %s", self.name, line.decode(errors="replace").rstrip())


def _ask(process: subprocess.Popen[bytes], message: bytes, until: float) -> str | None:
    """Send a message and return the answer.

    Raises:
        TimeoutError: there is none in time.
        OSError: the process has ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(into, False)
    answer = b""
    while not answer.endswith(b"\n"):
        left_s = until - time.monotonic()
        poll = select.poll()
        poll.register(out, select.POLLIN)
        if message:
            poll.register(into, select.POLLOUT)
        ready = dict(poll.poll(1000 * max(0.0, left_s)))
        if not ready:
            raise TimeoutError
        if into in ready:
            with contextlib.suppress(BlockingIOError):
                message = message[os.write(into, message) :]
        if out in ready:
            piece = os.read(out, 1 << 16)
            if not piece:
                raise ConnectionError
            answer += piece
    error = json.loads(answer)
    return None if error is None else str(error)
