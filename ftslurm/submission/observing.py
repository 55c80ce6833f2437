"""Keeps the observer of a run (ftslurm.observer) running beside the controller, outside of its decisions."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ftslurm.config import receivers
from ftslurm.config.schema import Config
from ftslurm.errors import FtslurmError
from ftslurm.run import configuration, leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event
from ftslurm.security import programs

AGAIN_S = 5.0  # before an observer that has died is started again
_BEYOND_S = 5.0  # more than an observer should need to end
log = logging.getLogger("ftslurm.submission.observing")


@contextmanager
def observed(config: Config, run: RunDir, leader: int | None) -> Iterator[Callable[[Event], None]]:
    """Keep an observer running, if the run needs one. At the end wait, for a limited time, until it has told all.

    Yields a function that gives it a line which the journal cannot take now.
    """
    if not receivers.needed(config):
        yield lambda _: None
        return
    watched = _Watched(run, leader)
    try:
        yield watched.tell
    finally:
        watched.end()


def tell_the_end(run: RunDir) -> None:
    """Tell the receivers of a run what its journal has got after the end of its controller. Never raises."""
    with suppress(FtslurmError, OSError):
        config = configuration.of_run(run)
        with observed(config, run, None):
            pass


class _Watched:
    """An observer that is started again when it dies."""

    def __init__(self, run: RunDir, leader: int | None) -> None:
        self._run = run
        self._command = programs.module("ftslurm.observer.observer", str(run.root), *([str(leader)] if leader else []))
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._start()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            log.error("the observer, which tells hooks and metrics, cannot be started: %s", error)

    def _watch(self) -> None:
        while not self._ending.wait(AGAIN_S):
            if self._process is None or self._process.poll() is not None:
                log.warning("the observer, which tells hooks and metrics, is gone; another one goes on")
                self._start()

    def tell(self, line: Event) -> None:
        """Give the observer a line that is not in the journal yet. If it is dead, the next one reads it there."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()

    def end(self) -> None:
        """Let the observer tell what is in the journal, and end."""
        from ftslurm.observer import observer  # not at the top: no step starts before this module is imported
        from ftslurm.observer.hook_command import TIMEOUT_S

        self._ending.set()
        self._thread.join()
        over = leadership.is_over(self._run)
        limit_s = observer.FINISH_S + 2 * TIMEOUT_S if over else observer.LEAVE_S
        for _ in range(2):  # the second one writes the outcome if the first hangs
            if self._process is None or self._process.poll() is not None:
                self._start()
            if self._process is None or self._process.stdin is None:
                return
            self._process.stdin.close()
            self._process.send_signal(signal.SIGCONT)  # somebody may have stopped it
            try:
                self._process.wait(limit_s + _BEYOND_S)
                return
            except subprocess.TimeoutExpired:
                log.warning("the observer has not ended within %g s and is killed", limit_s + _BEYOND_S)
                self._process.kill()
                self._process.wait()
