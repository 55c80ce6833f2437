"""Leads a run: takes the lead, runs the controller as a child, starts it again when it crashes, and hands over.

A keeper (keeper.py) leads from the controller's own job. A pilot or an array task (pilots.py) is a candidate:
it leads beside its own work, when nobody else does. Only the way to the lead differs (run/leadership.py).

    keeper, candidate ----- pipe: signals (keeper) -----> controller (controller_process.py)
      |                                                      |
      +-- takes the lead for it                              +-- srun ... srun, the Lighthouse

The groups and the Lighthouse run on while there is no controller, and the next one adopts them (core/lineage/).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ftslurm.config.schema import Config, fixed_standbys
from ftslurm.controller.signals import SIGNALS
from ftslurm.errors import complain
from ftslurm.launchers.job_command import KEEPER
from ftslurm.run import leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.security import programs
from ftslurm.slurm.commands import BATCH_PROCESS, is_batch

T = TypeVar("T")

COMMAND = programs.module("ftslurm.submission.controller_process")
MOST, WITHIN_S = 3, 60.0  # after so many crashes within this time the next controller would crash too
BAD_INPUT = 2  # exit code of a controller that could not begin
UNWRITTEN = 3  # of one whose run has not succeeded, which it could not write into the journal
# The last event of a controller that ended on purpose. As text: the controller starts only when this module has been
# imported, so it imports nothing that is not needed for that.
LAST = ("run_finished", "controller_left")
CHECKS_PER_S = 32  # of all pilots together: each check asks the file server a few times
STAND_BACK_S = 1.0  # head start of the controller's own job, and of others than one that has just handed over
FOLLOW_S = 0.25  # how often the controller's own job checks
LEAVE_S = 10.0  # how long a controller may take to leave its steps
END_S = 30.0  # how long it may take to tidy up when the run is over
AWAY_S = 600.0  # how long a file server may be away before the controller fails
CRASHED_S = 20.0  # head start of all others after several crashes here


class Lead:
    """The lead of a run as this process has it, or seeks it, and the controller, its child."""

    def __init__(self, run: RunDir, signals: int | None = None) -> None:
        """Seek the lead.

        Args:
            signals: as for controller_process.main.
        """
        self.run, self.signals = run, signals
        self.number = 0  # leader number of the last controller here
        self.process: subprocess.Popen[bytes] | None = None
        self.code = 0  # exit code of the last controller here
        self.crash = ""  # how it crashed
        self.crashes: list[float] = []  # the recent ones

    @property
    def leads(self) -> bool:
        """Return whether the controller runs here."""
        return self.process is not None and self.process.poll() is None

    @property
    def crashes_again(self) -> bool:
        """Return whether there have been too many crashes here to try again at once."""
        return len(self.crashes) >= MOST

    def take(self, after: int | None) -> bool:
        """Take the lead and start the controller. It dies with this process.

        Args:
            after: see leadership.take.

        Returns:
            False: another process was faster.

        Raises:
            OSError: the run directory cannot be written.
        """
        number = leadership.take(self.run, after)
        if number is None:
            return False
        told = {"root": str(self.run.root), "number": number, "pid": os.getpid(), "signals": self.signals}
        told["after"] = self.crash if number == self.number + 1 else ""
        self.number, self.code = number, -1
        env = os.environ | {KEEPER: str(os.getpid())} | ({BATCH_PROCESS: "0"} if is_batch(os.environ) else {})
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the child unblocks them when it has handlers
        try:
            self.process = subprocess.Popen(
                [*COMMAND, json.dumps(told)],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[] if self.signals is None else [self.signals],
                start_new_session=True,  # signals to this process group reach it through the pipe alone
            )
        except OSError as error:  # no memory for another process
            self.crash = f"the controller could not be started: {error.strerror}"
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return True

    def has_crashed(self) -> bool:
        """Return whether the controller, which has ended, crashed as the leader; say it and count it."""
        if self.process is not None:
            self.code, self.process = self.process.wait(), None
            self.crash = crashed(self.run, self.code)
        if not self.crash or not leadership.held(self.run, self.number):
            return False
        complain(self.crash)
        now = time.monotonic()
        self.crashes = [*(crash for crash in self.crashes if now - crash < WITHIN_S), now]
        return True

    def follow(self, config: Config) -> bool:
        """Wait until nobody leads, then take the lead. Return False if the run is over."""
        watch = liveness.Watch()
        while not leadership.is_over(self.run):
            last = leadership.vacant(self.run, config, watch, self.number)
            if last is not None and self.take(last):
                return True
            time.sleep(FOLLOW_S)
        return False


def patiently(call: Callable[[], T]) -> T:
    """Call a function that needs the run directory. Retry it while the file server is away: the groups train on.

    Raises:
        OSError: it has been away for AWAY_S.
    """
    until = time.monotonic() + AWAY_S
    while True:
        try:
            return call()
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(1.0)


def crashed(run: RunDir, code: int) -> str:
    """Return how a controller has crashed; empty: it ended on purpose or could not begin.

    One that is killed when the run is over may not have cancelled the jobs that are left: the next one does.
    """
    last = last_event(run.events)
    if code in (0, BAD_INPUT, UNWRITTEN) or (last == "run_requeued" and code == -signal.SIGTERM):
        return ""  # that signal is Slurm's, which requeues the job
    if last in LAST and not (code < 0 and last == "run_finished"):
        return ""
    if code < 0:
        from ftslurm.core.groups.verdict import signal_name

        return f"the controller was killed by {signal_name(-code)}"
    return f"the controller has failed (exit code {code}), see {run.controller_log}"


class Candidate(Lead):
    """Takes the lead when nobody else does, and makes way for others when its own job is about to end.

    `tend` is called about twice a second. The first candidate that finds the lead vacant takes it.
    """

    def __init__(self, config: Config, run: RunDir) -> None:
        """Start to watch the lead."""
        super().__init__(run)
        self.config = config
        self.by_hand = config.internal.pilots is not None  # else the controller's own job comes first
        self.may_lead = config.job_per_group and (config.cluster.controller == "job" or self.by_hand)
        self.tasks = config.groups.count + fixed_standbys(config)
        self.every_s = max(1.0, self.tasks / CHECKS_PER_S)
        self.making_way = False
        self.asked = 0  # the last controller here that was asked to hand over
        self.next_check = 0.0
        self.stood_back = -1  # for others when this leader had ended
        self.watch = liveness.Watch()

    @property
    def makes_way(self) -> bool:
        """Return whether the controller here has been asked to hand over, and has not ended yet."""
        return self.leads and self.asked == self.number

    def tend(self) -> None:
        """Take the lead if it is vacant."""
        now = time.monotonic()
        if not self.may_lead or self.leads:
            return
        with suppress(OSError):  # a file server that is away; the next check tries again
            if self.process is not None:
                failed = self.has_crashed()
                self.next_check = now + CRASHED_S if failed and self.crashes_again else 0.0
                if failed and not self.crashes_again:
                    self.take(self.number)  # this process knows of it first
            if now >= self.next_check and not self.leads:
                self.next_check = now + self.every_s * random.uniform(0.75, 1.25)  # noqa: S311
                self._check(now)

    def make_way(self) -> None:
        """Let another candidate lead, if there may be one, because this job is about to end."""
        self.making_way = self.tasks > 1 or not self.by_hand
        if self.making_way and self.leads and self.process is not None:
            self.asked = self.number
            self.process.send_signal(signal.SIGUSR2)

    def finish(self) -> None:
        """Wait until the controller here has tidied up or handed over: it ends with this process."""
        over = leadership.is_over(self.run)
        if over:
            self.tend()  # one that was killed at the end is started again
        if not self.leads or self.process is None:
            return
        if not over:
            self.make_way()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S if over else LEAVE_S)

    def _check(self, now: float) -> None:
        jitter_s = random.uniform(0, self.every_s)  # noqa: S311
        last = leadership.vacant(self.run, self.config, self.watch, self.number, jitter_s)
        if last is None:
            return
        back_s = STAND_BACK_S * ((self.making_way or last == self.number) + (not self.by_hand))
        if back_s and last != self.stood_back:
            self.stood_back, self.next_check = last, now + back_s
        else:
            self.take(last)
