"""Gives events to the command of a hook: it runs for each event, or is kept and gets a line for each (`stream`)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from typing import IO

from ftslurm.config import receivers
from ftslurm.config.receivers import Hook
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.protocol.readiness import readable
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables

MARK = "FTSLURM_HOOK"  # in the environment of each hook and callback: the run directory
TIMEOUT_S = 10.0  # a command that takes longer for one event is killed
START_S = 60.0  # for the first event of one that streams: it may import torch, from a file server
_END_S = 2.0  # for one that streams to end by itself
_LONGEST = 1000  # characters of a line that a command prints
log = logging.getLogger("ftslurm.observer")


class NotDelivered(Exception):
    """A receiver has failed; the text says how."""


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
            trial.deliver({})
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

    def deliver(self, message: Mapping[str, object]) -> None:
        """Give an event as a line of JSON to the command's standard input; wait for its end, or its answer.

        Raises:
            NotDelivered: it cannot be started, fails, or takes too long.
        """
        process, within_s, stream = self._process, TIMEOUT_S, self._hook.stream
        if process is None or process.poll() is not None or not stream:
            process, within_s = self._start(), START_S if stream else TIMEOUT_S
        late = threading.Event()

        def kill() -> None:
            late.set()
            kill_group(process)

        timer = threading.Timer(within_s, kill)
        timer.daemon = True
        timer.start()
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        answer = _told(process, line, within_s if stream else 0.0)
        if not answer:
            process.wait()
        timer.cancel()
        code = process.poll()
        if late.is_set():
            raise NotDelivered(f"killed after {within_s:g} s{self._last_words()}")
        if code is not None and (code or stream):
            how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
            raise NotDelivered(how + self._last_words())
        if why := answer.decode(errors="replace").strip():
            raise NotDelivered(why[:300])

    def kill(self) -> None:
        """End the command; one that streams has a moment to end by itself."""
        with self._lock:
            self._killed, process = True, self._process
        if process is None or process.stdin is None:
            return
        if self._hook.stream:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.stdin.close()
                process.wait(_END_S)
        if process.poll() is None:
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
        printed = process.stderr or process.stdout
        self._last, self._printing = b"", threading.Thread(target=self._log, args=[printed], daemon=True)
        self._printing.start()
        return process

    def _log(self, printed: IO[bytes]) -> None:
        """Copy what the command prints to the observer's log."""
        with printed:
            while line := printed.readline(_LONGEST):
                self._last = line.strip() or self._last
                log.info("%s: %s", self.name, line.decode(errors="replace").rstrip())

    def _last_words(self) -> str:
        self._printing.join(1.0)  # a child in a session of its own may hold the pipe
        return f": {self._last.decode(errors='replace')[:300]}" if self._last else ""


def _told(process: subprocess.Popen[bytes], message: bytes, answers_s: float) -> bytes:
    """Give a message to a command, and wait so long for its answer. Return that; empty: there is none."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):  # it reads no events, or has ended
        if not answers_s:
            process.stdin.write(message)
            process.stdin.close()
            return b""
        answers = process.stdout.fileno()
        while readable(answers) and os.read(answers, _LONGEST):
            pass  # more than the line that answered the last message
        process.stdin.write(message)
        process.stdin.flush()
        return _line(answers, answers_s)
    return b""


def _line(answers: int, within_s: float) -> bytes:
    """Return a line, or what there is at the end; nothing is kept for the next one."""
    line = b""
    while b"\n" not in line and readable(answers, within_s):  # at its end a child may still hold the pipe
        if not (piece := os.read(answers, _LONGEST)):
            break
        line += piece
    return line[: line.find(b"\n") + 1] or line


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and the others in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
