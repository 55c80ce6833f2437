"""Lets a job carry the controller beside its own work.

Run by the tasks of an array that was submitted by hand (array_task.py), and by the pilots of a run whose controller's
own job may be lost (pilots.py). Each calls `tend` about twice a second. The first candidate that finds the lead vacant
takes it (run/leadership.py) and starts the controller as a child process (controller_process.py).
"""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress

from ftslurm.config.schema import Config, fixed_standbys
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import inbox, leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.submission import keeper

CHECKS_PER_S = 32  # of all candidates together: each check asks the file server a few times
STAND_BACK_S = 5.0  # head start of better candidates: the controller's successor, or a job that is not about to end
LEAVE_S = 5.0  # how long a controller may take to leave its steps
END_S = 30.0  # how long it may take to tidy up when the run is over
CRASHED_S = 20.0  # head start of all others after several crashes here


class Candidate:
    """Watches the lead of a run, and takes it when it is vacant."""

    def __init__(self, config: Config, run: RunDir, job: str) -> None:
        """Start to watch the lead.

        Args:
            job: name of this process's Slurm job.
        """
        self.config, self.run, self.job = config, run, job
        self.by_hand = config.internal.pilots is not None  # else the controller's own job comes first
        self.tasks = config.groups.count + fixed_standbys(config)
        self.every_s = max(1.0, self.tasks / CHECKS_PER_S)
        self.process: subprocess.Popen[bytes] | None = None
        self.number = 0  # leader number of the last controller here
        self.crashes = keeper.Crashes()
        self.told = 0  # the leader that this job's output has named last
        self.making_way = False
        self.asked = 0  # the leader that was asked to hand over
        self.next_check = 0.0
        self.vacant_since: float | None = None
        self.watch = liveness.Watch()

    @property
    def leads(self) -> bool:
        """Return whether the controller runs here."""
        return self.process is not None and self.process.poll() is None

    def tend(self) -> None:
        """Take the lead if it is vacant. Called about twice a second."""
        now = time.monotonic()
        if self.leads:
            return
        if self.process is not None:
            self._ended(self.process.returncode, now)
        if now < self.next_check:
            return
        self.next_check = now + self.every_s * random.uniform(0.75, 1.25)  # noqa: S311
        with suppress(OSError):  # a file server that is away; the next check tries again
            self._check(now)

    def make_way(self) -> None:
        """Let another candidate lead, if there may be one, because this job is about to end."""
        if self.tasks == 1:
            return
        self.making_way = True
        if self.leads and self.asked != self.number:
            with suppress(EnvironmentProblem):
                why = f"the Slurm job {self.job} in which the controller runs is about to end"
                inbox.put(self.run.inbox, "hand_over", leader=self.number, reason=why)
                self.asked = self.number

    @property
    def makes_way(self) -> bool:
        """Return whether the controller here has been asked to hand over, and has not ended yet."""
        return self.leads and self.asked == self.number

    def finish(self) -> None:
        """Wait until the controller here has tidied up or handed over: it ends with this process."""
        if not self.leads or self.process is None:
            return
        over = last_event(self.run.events) == "run_finished"
        if not over:
            self.make_way()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S if over else LEAVE_S)

    def _ended(self, code: int, now: float) -> None:
        """Handle the end of the controller here. After a crash start it again: this process knows of it first."""
        self.process = None
        self.next_check = 0.0
        how = keeper.crashed(self.run, code)
        if how is None:
            return
        print(f"{how} (here)", flush=True)
        if self.crashes.note():
            self.next_check = now + CRASHED_S
        elif leadership.held(self.run, self.number):
            with suppress(OSError):  # a file server that is away; the next check tries again
                self._lead(self.number, how)

    def _check(self, now: float) -> None:
        self._say_who_leads()
        ended = self.number > 0 and leadership.newest(self.run) == self.number  # the last leader ran here
        jitter_s = random.uniform(0, self.every_s)  # noqa: S311
        last = leadership.vacant(self.run, self.config, self.watch, ended=ended, jitter_s=jitter_s)
        if last is None:
            self.vacant_since = None
            return
        self.vacant_since = now if self.vacant_since is None else self.vacant_since
        stands_back = self.making_way or not self.by_hand
        if stands_back and now < self.vacant_since + STAND_BACK_S:
            return
        self._lead(last)

    def _lead(self, last: int, after: str = "") -> None:
        number = leadership.take(self.run, last, self.job)
        if number is None:
            return
        self.number, self.vacant_since = number, None
        alone = self.making_way or self.tasks == 1  # no other controller could requeue this one's own job
        options = [*([] if alone else ["--pilot"]), *([f"--after={after}"] if after else [])]
        self.process = keeper.start(self.run, number, *options)

    def _say_who_leads(self) -> None:
        """Name the leader in the output of this job, for a reader who looks for the output of the run."""
        who = leadership.leader(self.run)
        if who is not None and who.number not in (self.told, self.number):
            self.told = who.number
            print(f"the controller runs on {who.host}, in Slurm job {who.job}", flush=True)
