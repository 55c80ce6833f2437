"""`python -m ftslurm.observer.observer RUN [LEADER]`: tells hooks, callbacks and Prometheus what the journal says.

It reads the journal as it grows, and gives each event to the sinks of those who have chosen it.

Who runs this: the controller's process (submission/observing.py), if the run has hooks, callbacks or metrics. It ends
when its standard input is closed and all is told: a run that is over gets its last event in any case, what else waits
is for the next observer. LEADER is the controller's number: the observer also ends when another one leads. What each
receiver has got is in RUN/observer.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from prometheus_client.exposition import generate_latest

from ftslurm.config import receivers
from ftslurm.errors import EnvironmentProblem, FtslurmError, complain
from ftslurm.guard import processes
from ftslurm.monitor import sentences
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.observer import hook_command
from ftslurm.observer.hook_command import TIMEOUT_S, HookCommand
from ftslurm.observer.metric_outputs import outputs
from ftslurm.observer.metrics import RunCollector
from ftslurm.observer.sinks import Sink
from ftslurm.protocol import kinds, readiness, records
from ftslurm.run import configuration, deliveries, leadership, log_cap
from ftslurm.run.deliveries import Delivery
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, last_event, number, text
from ftslurm.run.journal_lines import read
from ftslurm.run.run_reader import RunReader
from ftslurm.security.json_text import read_object
from ftslurm.security.terminal import readable

POLL_S = 0.5  # between two reads of the journal
FINISH_S = 10.0  # at the end of the run all events are tried for so long, then only the last one
LEAVE_S = 5.0  # so long events are tried when another controller goes on; the rest is for its observer
METRICS_EVERY_S = 15.0  # how often the metrics are brought up to date
LOCK_S = 10.0  # beyond TIMEOUT_S: how long the observer before may take to end
log = logging.getLogger("ftslurm.observer")


class Observer:
    """Observes one run."""

    def __init__(self, run: RunDir, leader: int | None) -> None:
        """Prepare to observe.

        Args:
            leader: number of the controller; None: no other one can take over.

        Raises:
            FtslurmError: the run directory cannot be trusted or read.
        """
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(each, lambda *_: None)  # Slurm sends them to all; the controller says when to end
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self.run_dir, self.leader, self.umask = run, leader, os.umask(0o077)
        self.config = configuration.of_run(run)
        log_cap.log_to(log, run.observer_log, self.config.logs.max_mb)
        run.observer.mkdir(mode=0o700, exist_ok=True)
        self._changes = threading.Lock()
        self.ahead: set[object] = set()  # numbers of the lines that were told before the journal had them

    def run(self) -> None:
        """Observe until standard input is closed, or until another controller leads."""
        with _only_one(self.run_dir, TIMEOUT_S + LOCK_S):
            for pid, _ in processes.having(hook_command.MARK, str(self.run_dir.root)):  # a killed observer left them
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.folding, self.next_output = StatusFold(), 0.0
            self.outputs = list(outputs(self.config.metrics, self.run_dir))
            known = {one.name: one for one in deliveries.read(self.run_dir)}
            env = hook_command.environment(self.config, self.run_dir, os.environ)
            given = (HookCommand(hook, env, self.umask) for hook in receivers.hooks(self.config))
            self.sinks = [Sink(one, known.get(one.name), self._save) for one in given]
            self._observe()

    def _observe(self) -> None:
        reader = RunReader(self.run_dir)
        ends, new = False, reader.up_to_now
        while not ends and self._leads():
            given = _given(POLL_S)
            ends = given == b""  # before the last read, so that all that was written until then is told
            for line in filter(None, map(read_object, (given or b"").splitlines())):
                self.ahead.add(line.get("seq"))
                self._tell(readable(line))
            try:
                for line in map(readable, new()):
                    if text(line, "event") == records.Progress.event:
                        self.folding.apply(line)
                    elif line.get("seq") not in self.ahead:
                        self._tell(line, reader.journal.offset)
                new = reader.iter_new
            except EnvironmentProblem as problem:
                log.warning("%s", problem)
            self._measure(at_once=ends)
        over = self.folding.status.outcome != "running"
        if not over and last_event(self.run_dir.events) != records.RunRequeued.event and self._leads():
            self.folding.status.outcome = "lost"  # until another controller's observer
        within_s = FINISH_S if over else LEAVE_S
        for sink in self.sinks:
            sink.finish(within_s, drops=over)
        until = time.monotonic() + within_s + (2 * TIMEOUT_S if over else 0.0) + 1.0
        for sink in self.sinks:
            sink.join(max(0.0, until - time.monotonic()))
        self._measure(at_once=True)
        self._save()

    def _measure(self, at_once: bool) -> None:
        """Bring the metrics up to date; their outputs only if that is due."""
        if not self.outputs or (not at_once and time.monotonic() < self.next_output):
            return
        self.next_output = time.monotonic() + METRICS_EVERY_S
        status = replace(self.folding.status, hooks=self._deliveries())
        metrics = generate_latest(RunCollector(self.run_dir.root.name, status))
        for output in self.outputs:
            output.update(metrics)
        self._save()

    def _deliveries(self) -> tuple[Delivery, ...]:
        return tuple(one.delivery for one in (*self.sinks, *self.outputs))

    def _leads(self) -> bool:
        return self.leader is None or leadership.held(self.run_dir, self.leader)

    def _tell(self, line: Event, offset: float = math.inf) -> None:
        """Tell an event to those who have chosen it and have not had it yet.

        Args:
            offset: in the journal, behind its line; inf: it is not there yet.
        """
        self.folding.apply(line)
        record, name = read(line), text(line, "event") or ""
        kind = kinds.kind(record)
        names = frozenset({name} - {*kinds.KINDS} | ({kind} if kind else set()))
        sinks = [sink for sink in self.sinks if names & sink.receiver.events and offset > sink.delivery.offset]
        if not sinks:
            return
        message = {
            "kind": kind or name,
            "text": sentences.describe(line, self.folding.status) or _plain(record, name),
            "run_id": self.run_dir.root.name,
            "run_dir": str(self.run_dir.root),
            "time": number(line, "time"),
            "event": line,
        }
        for sink in sinks:
            sink.put(message, offset)

    def _save(self) -> None:
        with self._changes:
            try:
                deliveries.write(self.run_dir, self._deliveries())
            except OSError as error:
                log.warning("what was delivered cannot be written: %s", error)


def _plain(record: records.JournalRecord, name: str) -> str:
    """Return the text of an event that a followed run does not print."""
    if isinstance(record, records.CheckpointSaved):
        return f"checkpoint of step {record.step} saved" + (f" in {record.path}" if record.path else "")
    return name.replace("_", " ")


def _given(timeout_s: float) -> bytes | None:
    """Wait at most so long; return the lines that the controller gives; b"": it ends this process, or has died."""
    if not readiness.readable(sys.stdin.fileno(), timeout_s):
        return None
    return os.read(sys.stdin.fileno(), select.PIPE_BUF)


@contextlib.contextmanager
def _only_one(run: RunDir, patience_s: float) -> Iterator[None]:
    """Wait until no other observer of the run is at work, but not for ever: its node may be lost."""
    fd = os.open(run.observer / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + patience_s
    try:
        while time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError as error:  # a file system without locks; another controller's observer ends by itself
                log.warning("%s cannot be locked: %s", run.observer, error)
                break
        yield
    finally:
        os.close(fd)


def main(run: str, leader: str | None = None) -> int:
    """Observe a run until told to end."""
    try:
        Observer(RunDir(Path(run)), int(leader) if leader else None).run()
    except FtslurmError as error:
        complain(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
