"""Runs the command of a hook for one event."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping

from ftslurm.config.receivers import Hook
from ftslurm.config.schema import Config
from ftslurm.observer.sinks import NotDelivered, Told
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables

MARK = "FTSLURM_HOOK"  # in the environment of each hook and callback: the run directory
TIMEOUT_S = 10.0  # a command or callback that takes longer for one event is killed
_TAIL = 4096  # bytes of a command's output that are kept


def environment(config: Config, run: RunDir, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of hooks and callbacks: the controller's, without the workers' secrets."""
    kept = secret_variables.without(config.job.secrets, environ)
    return {name: value for name, value in kept.items() if not name.startswith("FTSLURM_")} | {MARK: str(run.root)}


class HookCommand:
    """A receiver that runs a command for each event; it has failed if its exit code is not 0."""

    def __init__(self, hook: Hook, env: Mapping[str, str], umask: int) -> None:
        self.name, self.events = f"hook {hook.name}", hook.events
        self._command, self._env, self._umask = hook.command, env, umask
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._killed = threading.Lock(), False

    def deliver(self, told: Told) -> None:
        """Run the command with the event as JSON on its standard input.

        Raises:
            NotDelivered: it cannot be started, fails, or takes too long.
        """
        with tempfile.TemporaryFile() as event:
            event.write(told.json)
            event.seek(0)
            process = self._start(event.fileno())
            output = _Tail(process)
            code = self._wait(process)
        said = output.last_line()
        if code is None:
            raise NotDelivered(f"killed after {TIMEOUT_S:g} s" + (f": {said}" if said else ""))
        if code:
            how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            raise NotDelivered(how + (f": {said}" if said else ""))

    def kill(self) -> None:
        """End the command that runs now."""
        with self._lock:
            self._killed = True
            if self._process is not None and self._process.poll() is None:
                kill_group(self._process)

    def _start(self, stdin: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise NotDelivered("the observer ends")
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._env,
                    executable=shutil.which(self._command[0], path=self._env.get("PATH")),
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=self._umask,
                )
            except OSError as error:
                raise NotDelivered(f"cannot be started: {error.strerror}") from error
            return self._process

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """Wait for the end and return the exit code; None: it took too long, and was killed with its children."""
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_group(process)
            process.wait()
            return None


class _Tail:
    """Reads all that a process prints, so that it never waits for its reader, and keeps the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._out, self._kept = process.stdout, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """Return the last line that is not empty."""
        self._thread.join(1.0)  # a daemon in a session of its own may hold the pipe
        lines = [line for line in self._kept.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def _read(self) -> None:
        with self._out as out:
            while piece := os.read(out.fileno(), 1 << 16):
                self._kept = (self._kept + piece)[-_TAIL:]


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and the others in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
