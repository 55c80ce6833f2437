"""Gives events to the command of a hook: it runs for each event, or is kept and gets a line for each (`stream`)."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping

from ftslurm.config import receivers
from ftslurm.config.receivers import Hook
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.observer.sinks import NotDelivered, Told
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables

MARK = "FTSLURM_HOOK"  # in the environment of each hook and callback: the run directory
TIMEOUT_S = 10.0  # a command that takes longer for one event is killed
START_S = 60.0  # for the first event of one that streams: it may import torch, from a file server
_END_S = 2.0  # for one that streams to end by itself
_TAIL = 4096  # bytes of a command's output that are kept
_LONGEST = 1000  # characters of a line that a streaming command prints
log = logging.getLogger("ftslurm.observer")


def environment(config: Config, run: RunDir, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of hooks and callbacks: the controller's, without the workers' secrets."""
    kept = secret_variables.without(config.job.secrets, environ)
    return {name: value for name, value in kept.items() if not name.startswith("FTSLURM_")} | {MARK: str(run.root)}


def check_callbacks(config: Config, environ: Mapping[str, str]) -> None:
    """Import the callback classes as the observer will; not if cluster.setup may load what they need.

    Raises:
        ConfigError: one of them cannot be imported, or is no callback.
    """
    for name in () if config.cluster.setup else config.hooks.callbacks:
        trial = HookCommand(receivers.callback(config, name), environ)
        try:
            trial.deliver(Told(frozenset(), {}, None))
        except NotDelivered as why:
            raise ConfigError(
                f"hooks.callbacks: {name}: {why}; modules are looked for in the script's folder, in the working "
                f"directory and on PYTHONPATH"
            ) from None
        finally:
            trial.kill()


class HookCommand:
    """A receiver that gives each event to a command."""

    def __init__(self, hook: Hook, env: Mapping[str, str], umask: int = -1) -> None:
        self.name, self.events, self._hook = hook.name, hook.events, hook
        self._env, self._umask = env, umask
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._killed = threading.Lock(), False

    def deliver(self, told: Told) -> None:
        """Give an event as a line of JSON to the command's standard input; wait for its end, or its answer.

        Raises:
            NotDelivered: it cannot be started, fails, or takes too long.
        """
        process, within_s = self._process, TIMEOUT_S
        if process is None or process.poll() is not None or not self._hook.stream:
            process, within_s = self._start(), START_S if self._hook.stream else TIMEOUT_S
        in_time, said = _exchange(process, told.json, time.monotonic() + within_s, self._hook.stream)
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        last, code = (lines[-1].strip()[:300] if lines else ""), process.poll()
        if not in_time:
            kill_group(process)
            process.wait()
            last = f"killed after {within_s:g} s" + (f": {last}" if last else "")
        elif code is not None and (code or self._hook.stream):
            how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
            last = how + (f": {last}" if last else "")
        elif not self._hook.stream:
            return
        if last:
            raise NotDelivered(last)

    def kill(self) -> None:
        """End the command; one that streams has a moment to end by itself."""
        with self._lock:
            self._killed, process = True, self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.stdin.close()
            process.wait(_END_S if self._hook.stream else 0.0)
        if process.returncode is None:
            kill_group(process)

    def _start(self) -> subprocess.Popen[bytes]:
        command, stream = self._hook.command, self._hook.stream
        with self._lock:
            if self._killed:
                raise NotDelivered("the observer ends")
            try:
                self._process = process = subprocess.Popen(
                    command,
                    env=self._env,
                    executable=shutil.which(command[0], path=self._env.get("PATH")),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE if stream else subprocess.STDOUT,
                    start_new_session=True,
                    umask=self._umask,
                )
            except OSError as error:
                raise NotDelivered(f"cannot be started: {error.strerror}") from error
        if stream:
            threading.Thread(target=self._log, args=(process,), daemon=True).start()
        return process

    def _log(self, process: subprocess.Popen[bytes]) -> None:
        """Copy what a command that streams prints to the observer's log."""
        assert process.stderr is not None
        with process.stderr as printed:
            while line := printed.readline(_LONGEST):
                log.info("%s: %s", self.name, line.decode(errors="replace").rstrip())


def _exchange(process: subprocess.Popen[bytes], message: bytes, until: float, stream: bool) -> tuple[bool, bytes]:
    """Give a message to a command. Return whether it has ended or answered in time, and the end of what it has said."""
    assert process.stdin is not None
    assert process.stdout is not None
    into, out, said, talks = process.stdin, process.stdout.fileno(), b"", True
    os.set_blocking(into.fileno(), False)
    while (left_s := until - time.monotonic()) > 0:
        if not (talks or message):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left_s)
        ended, piece, poll = process.poll() is not None, b"", select.poll()
        if talks:
            poll.register(out, select.POLLIN)
        if message:
            poll.register(into.fileno(), select.POLLOUT)
        ready = dict(poll.poll(0 if ended else 1000 * min(left_s, 0.2)))
        if out in ready:
            piece = os.read(out, 1 << 16)
            said, talks = (said + piece)[-_TAIL:], bool(piece)
        if message and into.fileno() in ready:
            try:
                message = message[os.write(into.fileno(), message) :]
            except BrokenPipeError:  # it reads no events, or has ended
                message = b""
            if not (message or stream):
                into.close()
        if (ended and not piece) or (stream and said.endswith(b"\n")):  # its children may hold the pipe
            return True, said
    return False, said


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and the others in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
