"""Start the controller's child processes, read and write their pipes, signal and reap them, without blocking.

Every call of `listen` checks all pipes and children, whatever woke the selector: a lost signal costs one tick.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ftslurm.core.state.model import StepId
from ftslurm.guard.processes import PR_SET_CHILD_SUBREAPER, descendants, prctl
from ftslurm.launchers.background import Answered, BackgroundCommands
from ftslurm.launchers.scheduler import CancelStep, Command, Scheduler
from ftslurm.protocol import messages
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.value_class import Value
from ftslurm.run import liveness, log_cap
from ftslurm.security import owned_files

HELPER_S = 5.0  # srun's helper process ends within two seconds of srun, or it is stuck
ORDER_S = 1.0  # longer than a process needs to end after the message `kill`
LONGEST_LINE = 4096  # bytes of a stderr line that are read
# Why an adopted step's task has let go of its controller.
TOLD = frozenset((ExitCode.ORPHANED, ExitCode.NO_GUARD, ExitCode.END_REPORTED, ExitCode.DETACHED))
GENTLE_S = 1.5  # longer than guards need that leave shared memory's helpers time to clean up
STUCK_S = 0.2  # wait for the rest of a step after the loss of one of its nodes


class Received(Value):
    """A message from a worker or its guard."""

    id: StepId
    message: messages.Raw


class LauncherPrinted(Value):
    """A line on the launcher's stderr."""

    id: StepId
    line: str


class StepEnded(Value):
    """The end of every process of a step. codes are their exit codes, negative for signals."""

    id: StepId
    codes: tuple[int, ...]
    killed: bool  # by us


News = Received | LauncherPrinted | StepEnded | Answered


@dataclass(eq=False)
class _Child:
    id: StepId
    process: subprocess.Popen[bytes]
    by_order: bool
    out: messages.Lines = field(default_factory=messages.Lines)
    err: messages.Lines = field(default_factory=messages.Lines)
    unsent: bytearray = field(default_factory=bytearray)
    code: int | None = None


@dataclass(eq=False)
class _Step:
    children: list[_Child]
    log: IO[bytes]
    log_path: Path
    log_max_mb: int  # logs.max_mb
    kills: int = 0
    forced_at: float | None = None  # when the message `kill` has had its time, and a signal ends the step
    slurm_id: str | None = None  # JOB.STEP, once a task has reported it
    heard: bool = False  # a task has sent a message
    cancelling: CancelStep | None = None  # it has been asked for
    stuck: bool = False  # its srun waits for a lost node
    over_since: float | None = None  # since when all its local processes have ended


class Children:
    """The processes of all steps: one srun each, or one process for each worker of a local run."""

    def __init__(
        self,
        run_dir: Path,
        scheduler: Scheduler,
        check_lead: Callable[[], None] = lambda: None,
        greeting: bytes = b"",
        log_max_mb: int = 0,
    ) -> None:
        """Begin without any step.

        Args:
            check_lead: raises if another controller leads: the steps then belong to it.
            greeting: the first line that every process gets.
            log_max_mb: the largest size of each step.log in MiB; 0: no limit.
        """
        self.scheduler, self.check_lead, self.greeting, self.log_max_mb = scheduler, check_lead, greeting, log_max_mb
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of a killed guard become our children, and are killed
        self.mark = os.fsencode(f"FTSLURM_RUN_DIR={run_dir}")
        self.selector = selectors.DefaultSelector()
        self.steps: dict[StepId, _Step] = {}
        self.by_pid: dict[int, _Child] = {}
        self.adopted: set[StepId] = set()  # started by an earlier controller's srun; our srun only carries messages
        self.background = BackgroundCommands()

    def identify(self, step: StepId, slurm_id: str | None) -> None:
        """Record Slurm's id of a step."""
        if step in self.steps:
            self.steps[step].slurm_id = slurm_id

    def launch(self, step: StepId, commands: Sequence[Command], log: Path) -> str | None:
        """Start a step's processes, each in a session of its own; return an error, or None."""
        try:
            sink = os.fdopen(owned_files.open_fd(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)
        except OSError:  # a full disk or a deleted log folder does not stop the training
            sink = open(os.devnull, "ab", buffering=0)  # noqa: SIM115, PTH123
        self.steps[step] = entry = _Step([], sink, log, self.log_max_mb)
        for command in commands:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, command.blocked)  # the child inherits this
            try:
                process = subprocess.Popen(
                    command.argv,
                    env=dict(command.env),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # ValueError: a NUL character in the environment
                _log(entry, f"cannot start {command.argv[0]}: {error}\n".encode())
                self.kill(step, None)
                if not entry.children:  # no process whose end will be reaped
                    entry.log.close()
                    del self.steps[step]
                return f"cannot start {command.argv[0]}: {error}"
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.background.count(command.rpcs, free=step.attempt == 0)
            child = _Child(step, process, command.by_order)
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
            assert process.stdout is not None
            assert process.stderr is not None
            self.selector.register(process.stdout, selectors.EVENT_READ, (child, "out"))
            self.selector.register(process.stderr, selectors.EVENT_READ, (child, "err"))
            entry.children.append(child)
            self.by_pid[process.pid] = child
            child.unsent += self.greeting
            self._write(child)
        return None

    def adopt(self, step: StepId, command: Command, log: Path, slurm_id: str | None) -> str | None:
        """Start an srun that attaches to a running step. If it fails, and slurm_id is known, the step is cancelled."""
        self.adopted.add(step)
        problem = self.launch(step, [command], log)
        self.identify(step, slurm_id)
        return problem

    def leave(self) -> None:
        """Detach from all steps, so that they continue and a new controller can adopt them.

        When an srun ends its step ends too, unless all processes of srun are killed at once (22.05, 24.11, 26.05).
        A Lighthouse beside the controller goes on until `end_by_order`.
        """
        sruns = {pid: child for pid, child in self.by_pid.items() if not child.by_order}
        for pid in sruns:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for pid, child in sruns.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(HELPER_S)
            del self.by_pid[pid]

    def alive(self) -> bool:
        """Return whether a process that was started here has not ended yet."""
        return any(child.process.poll() is None for child in self.by_pid.values())

    def end_by_order(self) -> None:
        """End a Lighthouse beside the controller.

        One that another controller has adopted does not receive the message.
        """
        for child in self.by_pid.values():
            self.send(child.id, messages.encode(messages.Kill()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(ORDER_S)

    def send(self, step: StepId, line: bytes) -> None:
        """Queue a line for every process of a step."""
        entry = self.steps.get(step)
        for child in entry.children if entry else ():
            if child.code is None:
                child.unsent += line
                self._write(child)

    def kill(self, step: StepId, first: int | None, stuck: bool = False) -> None:
        """End a step: by the message `kill`, by the signal `first` if that does not help, by SIGKILL when called again.

        srun kills all processes at once on a signal; guards leave those time that remove shared memory.
        SIGKILL goes only to the launcher's main process: when srun's dies, its helper process kills the tasks.

        Args:
            stuck: a node of the step is lost, so the rest of the step is not waited for.
        """
        entry = self.steps.get(step)
        if entry is None:
            return
        entry.stuck = entry.stuck or stuck
        self.send(step, messages.encode(messages.Kill()))
        entry.kills += 1
        if entry.kills == 1 and entry.heard and not stuck:
            entry.forced_at = time.monotonic() + GENTLE_S
        else:
            self._force(step, first if entry.kills == 1 else signal.SIGKILL)

    def _force(self, step: StepId, number: int | None) -> None:
        entry = self.steps[step]
        entry.forced_at = None
        if step in self.adopted:
            self.cancel(step)  # the end of our srun does not end an adopted step
        for child in entry.children:
            if child.code is None and number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.process.pid, number)

    def killed(self, step: StepId) -> bool:
        """Return whether we are ending this step."""
        return step in self.steps and self.steps[step].kills > 0

    def listen(self, timeout: float) -> Iterator[News]:
        """Wait at most `timeout` seconds, and yield the news."""
        for key, events in self.selector.select(timeout):
            if key.data is None:
                continue  # the wake-up descriptor: its owner drains it
            child, stream = key.data
            if events & selectors.EVENT_READ:
                yield from self._read(child, stream)
            if events & selectors.EVENT_WRITE:
                self._write(child)
        yield from self._reap()
        yield from self._settle()
        yield from self.background.start_waiting()
        self.background.kill_overdue()

    def _read(self, child: _Child, stream: str) -> Iterator[News]:
        pipe = child.process.stdout if stream == "out" else child.process.stderr
        if pipe is None or pipe.closed:
            return
        while True:
            try:
                data = os.read(pipe.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self.selector.unregister(pipe)
                pipe.close()
                return
            step = self.steps[child.id]
            if stream == "err":
                _log(step, data)
                for line in child.err.feed(data):
                    yield LauncherPrinted(child.id, line[:LONGEST_LINE].decode(errors="replace"))
            else:
                for line in child.out.feed(data):
                    message = messages.parse(line)
                    if message is None:
                        _log(step, line + b"\n")  # not a message: output for the user
                    else:
                        step.heard = True
                        yield Received(child.id, message)

    def _write(self, child: _Child) -> None:
        pipe = child.process.stdin
        if pipe is None or pipe.closed:
            return
        try:
            while child.unsent:
                del child.unsent[: os.write(pipe.fileno(), child.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            child.unsent.clear()  # the process has ended; `_reap` handles it
        registered = pipe.fileno() in self.selector.get_map()
        if child.unsent and not registered:
            self.selector.register(pipe, selectors.EVENT_WRITE, (child, "in"))
        elif not child.unsent and registered:
            self.selector.unregister(pipe)

    def _reap(self) -> Iterator[News]:
        """Reap children, and yield their last messages; a step is over when all its processes have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (answer := self.background.reaped(pid, os.waitstatus_to_exitcode(status))) is not None:
                yield answer
                continue
            child = self.by_pid.pop(pid, None)
            if child is None:
                continue  # an orphan of a guard
            child.code = child.process.returncode = os.waitstatus_to_exitcode(status)
            for stream in ("out", "err"):
                yield from self._read(child, stream)
            for pipe in (child.process.stdin, child.process.stdout, child.process.stderr):
                assert pipe is not None
                if not pipe.closed:
                    with contextlib.suppress(KeyError, ValueError):
                        self.selector.unregister(pipe)
                    pipe.close()
            if self.scheduler.direct:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # processes that remain in its session
                self._sweep()
            step = self.steps[child.id]
            if all(c.code is not None for c in step.children):
                step.over_since = time.monotonic()

    def _settle(self) -> Iterator[News]:
        """Yield the end of each step that is over, once none of its tasks can be left on any node.

        When srun is killed its helper process kills the tasks within 0.1 s, so this waits for the helper. If the helper
        is killed too, the tasks would continue beside the next attempt: scancel ends them.
        """
        for id_, step in list(self.steps.items()):
            if step.over_since is None:
                if step.forced_at is not None and time.monotonic() >= step.forced_at:
                    self._force(id_, signal.SIGTERM)
                continue
            if not self.scheduler.direct:
                waited = time.monotonic() - step.over_since > (STUCK_S if step.stuck else HELPER_S)
                if any(liveness.lives(-child.process.pid) for child in step.children):
                    if not waited:
                        continue
                    for child in step.children:  # srun's helper, which tries to reach the node
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(child.process.pid, signal.SIGKILL)
                there = step.heard or step.kills  # else only srun has failed, and is retried
                bad = [c.code for c in step.children if c.code and (there or c.code != ExitCode.SRUN_FAILED)]
                if id_ in self.adopted and bad:
                    self.check_lead()  # it also fails when another controller has attached
                    if not (waited or step.kills or TOLD.issuperset(bad)):
                        continue  # srun was ended, maybe with our job: then we leave, and the step trains on
                abnormal = waited or step.kills > 1 or any(id_ in self.adopted or code < 0 for code in bad)
                if abnormal:
                    self.cancel(id_)
                if not step.stuck and step.cancelling is not None and self.background.asking(step.cancelling):
                    continue
            step.log.close()
            del self.steps[id_]
            yield StepEnded(id_, tuple(child.code or 0 for child in step.children), step.kills > 0)

    def cancel(self, step: StepId) -> bool:
        """Have a step cancelled by the scheduler, once. Return False if it has not been named."""
        entry = self.steps.get(step)
        if entry is None or entry.slurm_id is None:
            return False
        if entry.cancelling is None:
            entry.cancelling = CancelStep(entry.slurm_id)
            self.background.ask(self.scheduler.request(entry.cancelling))
        return True

    def _sweep(self) -> None:
        """Kill orphans: processes of this run that have become our children without being started by us."""
        for pid in descendants(os.getpid(), depth=1):
            if pid not in (*self.by_pid, *self.background.running) and self._is_of_this_run(pid):
                for stray in [pid, *descendants(pid)]:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(stray, signal.SIGKILL)

    def _is_of_this_run(self, pid: int) -> bool:
        try:
            return self.mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _log(step: _Step, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk must not stop the training
        step.log.write(data)
    log_cap.cut(step.log_path, step.log_max_mb)
