"""Keeps a controller running: a small parent process starts it again if it is killed, runs out of memory or raises.

Run by the controller's job (entry.py), or by `ftslurm run` with cluster.controller=here, in the allocation. The
candidates for the lead (candidate.py) use `start` and `crashed`.

    keeper ----- pipe: signals -----> controller (controller_process.py)
      |                                  |
      +-- takes the lead for it          +-- srun ... srun, the Lighthouse

The groups and the Lighthouse run on while there is no controller, and the next one adopts them (core/lineage/). Only
the end of the keeper, which on Slurm is the batch process, ends the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

from ftslurm.config.schema import Config
from ftslurm.controller.signals import SIGNALS, Wakeup
from ftslurm.errors import complain
from ftslurm.launchers.job_command import KEEPER
from ftslurm.protocol.readiness import readable
from ftslurm.run import leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.security import process_title, programs
from ftslurm.slurm.commands import BATCH_PROCESS, is_batch, job_name

COMMAND = programs.module("ftslurm.submission.controller_process")
MOST, WITHIN_S = 3, 60.0  # after so many crashes within this time the next controller would crash too
BAD_INPUT = 2  # exit code of a controller that could not begin
UNWRITTEN = 3  # of one whose run has not succeeded, which it could not write into the journal
INTERRUPTED = 130  # exit code of the keeper after Ctrl-C
# The last event of a controller that ended on purpose. As text: the controller starts only when this module has been
# imported, so it imports nothing that is not needed for that.
LAST = ("run_finished", "run_requeued", "controller_left")
AWAY_S = 600.0  # how long a file server may be away before the keeper fails


class Crashes:
    """Counts the recent crashes of a controller."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def note(self) -> bool:
        """Count a crash. Return whether there have been too many to try again at once."""
        now = time.monotonic()
        self.times = [*(crash for crash in self.times if now - crash < WITHIN_S), now]
        return len(self.times) >= MOST


def start(run: RunDir, number: int, *options: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a controller as a child of this process; it dies with this process.

    Args:
        number: the controller's leader number.
        options: see controller_process.py.
    """
    command = [*COMMAND, str(run.root), str(number), str(os.getpid()), *options]
    env = os.environ | {KEEPER: str(os.getpid())} | ({BATCH_PROCESS: "0"} if is_batch(os.environ) else {})
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the child inherits this and unblocks them when it has handlers
    try:
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, pass_fds=pass_fds, start_new_session=True
        )  # in a session of its own: signals to this process group reach it through the pipe alone
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def crashed(run: RunDir, code: int) -> str | None:
    """Return how a controller has crashed; None if it ended on purpose or could not begin."""
    if code in (0, BAD_INPUT, UNWRITTEN) or last_event(run.events) in LAST:
        return None
    if code < 0:
        from ftslurm.core.groups.verdict import signal_name

        return f"the controller was killed by {signal_name(-code)}"
    return f"the controller has failed (exit code {code}), see {run.controller_log}"


def keep(run: RunDir, array: Config | None = None, hand_over: bool = False) -> int:
    """Keep a controller of this run running until the run is over or goes on elsewhere.

    Signals to this process reach the controller through a pipe; they wait in it while there is no controller.

    Args:
        array: the configuration of a run in array mode, where others may lead; None: another mode.
        hand_over: an earlier controller is to hand over the lead (array mode).

    Returns:
        The exit code of the run.
    """
    process_title.of_run("keeper", run.root.name)
    job = job_name(os.environ) if "SLURM_JOB_ID" in os.environ else None
    crashes, crash, interrupted = Crashes(), "", False
    number = _take(run, None, job) if array is None else leadership.follow(array, run, job, hand_over)
    wakeup = Wakeup(SIGNALS)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    while number is not None:
        options = [f"--signals={read_end}", *([f"--after={crash}"] if crash else [])]
        try:
            process = start(run, number, *options, pass_fds=(read_end,))
        except OSError as error:  # no memory for another process
            crash, code = f"the controller could not be started: {error.strerror}", -1
        else:
            interrupted |= _watch(process, wakeup, write_end)
            code = process.returncode
            crash = crashed(run, code) or ""
        if code == BAD_INPUT and array is None and last_event(run.events) not in (None, *LAST):
            return give_up(run, f"the next controller could not begin; the output of its job says why ({run.submitit})")
        if not crash or not leadership.held(run, number):
            return INTERRUPTED if interrupted and code == 1 else max(0, code)
        complain(crash)
        if crashes.note():
            return 1 if array is not None else give_up(run, f"{crash}, {MOST} times within {WITHIN_S:g} s")
        number = _take(run, number, job)
    return int(last_event(run.events) == "run_finished" and _outcome(run) != "succeeded")


def _outcome(run: RunDir) -> str | None:
    from ftslurm.run.replay import read_past

    return read_past(run)[1]


def _watch(process: subprocess.Popen[bytes], wakeup: Wakeup, write_end: int) -> bool:
    """Wait for the end of a controller and pass signals on to it. Return whether SIGINT was among them."""
    interrupted = False
    while process.poll() is None:
        readable(wakeup.fd, 1.0)
        numbers = wakeup.drain()
        interrupted = interrupted or signal.SIGINT in numbers
        os.write(write_end, bytes(numbers))
    return interrupted


def _take(run: RunDir, after: int | None, job: str | None) -> int | None:
    """Take the lead. Wait for a file server that is away, because the groups train on.

    Raises:
        OSError: it has been away for AWAY_S.
    """
    until = time.monotonic() + AWAY_S
    while True:
        try:
            return leadership.take(run, after, job)
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(1.0)


def give_up(run: RunDir, reason: str) -> int:
    """End a run that no controller can lead: write the end of its journal and cancel its steps."""
    from ftslurm.run.replay import read_past
    from ftslurm.slurm import client
    from ftslurm.submission import requeue

    past, _ = read_past(run)
    left = past.live.values() if past is not None else ()
    steps = [live.slurm_step for live in left if live.slurm_step]
    with suppress(OSError):
        requeue.end_journal(run, reason, "failed", left)
    client.cancel(*steps)
    complain(reason)
    return 1
