"""Keep a controller running: a small parent process starts it again when it is killed, runs out of memory or raises.

The groups train on meanwhile, and so does the Lighthouse; the next controller adopts them all (core/adopt.py). What the
controller's end would have meant for the run, only the end of this process means: on Slurm that of the batch process.

    keeper ----- pipe: signals -----> controller (ftslurm.submission.controller_process)
      |                                  |
      +-- takes the lead for it          +-- srun ... srun, the Lighthouse
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ftslurm.config.schema import Config
from ftslurm.controller.resume_state import Story
from ftslurm.controller.signals import SIGNALS, Wakeup
from ftslurm.core.groups.causes import signal_name
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers import local, srun
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol.records import ControllerLeft, RunFinished, RunRequeued
from ftslurm.run import leadership, liveness, log_cap
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, last_event
from ftslurm.run.replay import read_past
from ftslurm.slurm import client
from ftslurm.submission import requeue

COMMAND = [sys.executable, "-m", "ftslurm.submission.controller_process"]
MOST, WITHIN_S = 3, 60.0  # so many crashes within so many seconds: the next controller would crash, too
INTERRUPTED = 130  # our exit code when somebody has pressed Ctrl-C
BAD_INPUT = 2  # the exit code of a controller that could not begin
LAST = (
    RunFinished.event,
    RunRequeued.event,
    ControllerLeft.event,
)  # a controller's last line
AWAY_S = 600.0


class Crashes:
    """How often a controller has crashed of late."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def note(self) -> bool:
        """Count one more; whether there is no use in trying again at once."""
        now = time.monotonic()
        self.times = [*(one for one in self.times if now - one < WITHIN_S), now]
        return len(self.times) >= MOST


def start(run: RunDir, number: int, *options: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a controller as a child of this process, with which it dies; `number` is what the lead was taken as."""
    command = [*COMMAND, str(run.root), str(number), str(os.getpid()), *options]
    env = os.environ | {srun.KEEPER: str(os.getpid())}
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it has handlers for them (wakeup.py)
    try:
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, pass_fds=pass_fds, start_new_session=True
        )  # in a session of its own: what is meant for all of ours reaches it through us
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def crashed(run: RunDir, code: int) -> str | None:
    """How a controller that has ended has crashed, in words; None: it had done its work, or could not begin."""
    if code in (0, BAD_INPUT) or last_event(run.events) in LAST:
        return None
    if code < 0:
        return f"the controller was killed by {signal_name(-code)}"
    return f"the controller has failed (exit code {code}), see {run.controller_log}"


def keep(config: Config, run: RunDir, hand_over: bool = False) -> int:
    """Keep a controller of this run running until the run is over, or goes on elsewhere; the exit code is the run's.

    Signals to this process reach the controller through a pipe, also if there is none at that moment.

    Args:
        hand_over: there is an earlier one (array mode), which is to make way.
    """
    job, crashes, why, interrupted = os.environ.get("SLURM_JOB_ID"), Crashes(), "", False
    array = config.cluster.mode == "array"
    number = leadership.follow(config, run, job, hand_over) if array else _take(run, None, job)
    wakeup = Wakeup(SIGNALS)
    signals, told = os.pipe()
    os.set_blocking(signals, False)
    while number is not None:
        options = [f"--signals={signals}", *([f"--after={why}"] if why else [])]
        try:
            process = start(run, number, *options, pass_fds=(signals,))
        except OSError as error:  # no memory for another process
            why, code = f"the controller could not be started: {error.strerror}", -1
        else:
            while process.poll() is None:
                select.select([wakeup.fd], [], [], 1.0)
                numbers = wakeup.drain()
                interrupted = interrupted or signal.SIGINT in numbers
                os.write(told, bytes(numbers))
            code = process.returncode
            why = crashed(run, code) or ""
        if code == BAD_INPUT and not array and last_event(run.events) not in (None, *LAST):
            return give_up(
                run, f"the next controller could not begin: what its job has printed says why ({run.submitit})"
            )
        if not why or not leadership.held(run, number):
            return INTERRUPTED if interrupted and code == 1 else max(0, code)
        print(f"ftslurm: {why}", file=sys.stderr, flush=True)
        if crashes.note():
            return 1 if array else give_up(run, f"{why}, {MOST} times within {WITHIN_S:g} s")
        number = _take(run, number, job)
    return int(last_event(run.events) == "run_finished" and read_past(run)[1] != "succeeded")


def _take(run: RunDir, after: int | None, job: str | None) -> int | None:
    """Take the lead, also if the file server is away for a while: the groups train on.

    Raises:
        OSError: it is away for longer than anybody would wait.
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
    """End a run that no controller can lead: its journal, and the steps that nobody minds any more."""
    past, _ = read_past(run)
    left = past.live if past is not None else ()
    steps = [live.slurm_step for live in left if live.slurm_step]
    with suppress(OSError):
        requeue.end_journal(run, reason, "failed", left)
    client.cancel(*steps)
    print(f"ftslurm: {reason}", file=sys.stderr, flush=True)
    return 1


def control(
    config: Config,
    run: RunDir,
    submit: Callable[[str], object],
    tell: Callable[[Event], None] = lambda _: None,
    known: Callable[[RunStatus], None] = lambda _: None,
    number: int | None = None,
    signals: int | None = None,
    after: str = "",
) -> int:
    """Run the controller in this process, and see to it that the run goes on in another job if it is to.

    Args:
        submit: submits the job in which the run goes on after this one (again.go_on).
        tell: called with every event once it is in the journal.
        known: called with how the run stands, by what earlier controllers have written, before anything is told.
        number: ours among those that took the lead; None: a local run, in which nobody follows.
        signals: the pipe through which the process that keeps us passes on its signals, a byte each.
        after: how the controller before us has crashed.

    Returns:
        The exit code of the run: 0 it succeeded, or goes on with another controller; 1 it did not.
    """
    from ftslurm.controller.loop import Controller

    handler = log_cap.Handler(run.controller_log, config.logs.max_mb)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("ftslurm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    story = Story(run)
    try:
        allocation = local.allocation(config) if config.cluster.kind == "local" else srun.allocation(config, os.environ)
        with liveness.kept(
            run.alive, config.health.heartbeat_s, lambda: number is None or leadership.held(run, number)
        ):
            past, outcome = story.read()  # it may be long
            if outcome in ("succeeded", "failed"):
                return int(outcome == "failed")
            known(story.shown())
            controller = Controller(config, run, allocation, story.told(tell), past, number, signals, after)
        outcome = controller.run()
    except EnvironmentProblem:
        raise
    except Exception:
        logger.exception("the controller failed; this is a bug in ftslurm")
        raise
    if outcome == "requeued":
        why_not = requeue.go_on(config, run, submit)
        if why_not is None:
            return 0
        logger.error("%s", why_not)
        tell(requeue.end_journal(run, why_not))
    return 0 if outcome in ("succeeded", "left", leadership.SUPERSEDED) else 1
