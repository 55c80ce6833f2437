"""A job that may carry the controller, beside what it does itself.

These are the tasks of an array that was submitted by hand, and the pilots of a run whose controller's own job is lost.

Whoever is first takes the lead (run/leadership.py) and runs the controller as a child process, which dies with it. The
others look now and then whether the lead is vacant.
"""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import inbox, leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.submission import keeper

LOOKS_PER_S = 32  # of all candidates together: each look asks the file server a few times
STANDS_BACK_S = 5.0  # so long another one is given the chance: the controller's successor, or who does not end itself
MAKES_WAY_S = 5.0  # so long a controller may take to leave its steps
ENDS_S = 30.0  # and so long to tidy up when the run is over
FOLLOWS_S = 20.0  # another one is given the chance for so long when controllers crash here again and again


class Candidate:
    """One of those that may lead the run."""

    def __init__(self, config: Config, run: RunDir, job: str | None) -> None:
        """Begin to watch the lead. job: id of our Slurm job."""
        self.config, self.run, self.job = config, run, job
        self.by_hand = config.cluster.pilots is not None  # else the controller's own job comes before us
        self.tasks = config.groups.count + config.standby.count
        self.every_s = max(1.0, self.tasks / LOOKS_PER_S)
        self.process: subprocess.Popen[bytes] | None = None
        self.number = 0  # ours, when we have led last
        self.crashes = keeper.Crashes()
        self.told = 0  # the leader that our output has named last
        self.making_way = False
        self.asked = 0  # the number of the one that was told to
        self.next_look = 0.0
        self.vacant_since: float | None = None
        self.watch = liveness.Watch()

    @property
    def leads(self) -> bool:
        """Whether the controller runs here."""
        return self.process is not None and self.process.poll() is None

    def tend(self) -> None:
        """Take the lead if nobody has it; to be called about twice a second."""
        now = time.monotonic()
        if self.leads:
            return
        if self.process is not None:
            self._ended(self.process.returncode, now)
        if now < self.next_look:
            return
        self.next_look = now + self.every_s * random.uniform(0.75, 1.25)  # noqa: S311
        with suppress(OSError):  # a file server that is away; the next look will tell
            self._look(now)

    def make_way(self) -> None:
        """This job is about to end: let another one go on with what runs, if there may be any."""
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
        """Whether the controller here has been told to, and has not ended yet."""
        return self.leads and self.asked == self.number

    def finish(self) -> None:
        """We are about to end, and the controller with us: wait until it has tidied up, or made way."""
        if not self.leads or self.process is None:
            return
        over = last_event(self.run.events) == "run_finished"
        if not over:
            self.make_way()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDS_S if over else MAKES_WAY_S)

    def _ended(self, code: int, now: float) -> None:
        """The controller here has ended. One that has crashed is started again at once, for nobody can know sooner."""
        self.process = None
        self.next_look = 0.0
        how = keeper.crashed(self.run, code)
        if how is None:
            return
        print(f"{how} (here)", flush=True)
        if self.crashes.note():
            self.next_look = now + FOLLOWS_S
        elif leadership.held(self.run, self.number):
            with suppress(OSError):  # a file server that is away; the next look will tell
                self._lead(self.number, how)

    def _look(self, now: float) -> None:
        self._say_who_leads()
        ended = self.number > 0 and leadership.newest(self.run) == self.number  # it was ours, and is no more
        jitter_s = random.uniform(0, self.every_s)  # noqa: S311
        last = leadership.vacant(self.run, self.config, self.watch, ended=ended, jitter_s=jitter_s)
        if last is None:
            self.vacant_since = None
            return
        self.vacant_since = now if self.vacant_since is None else self.vacant_since
        stands_back = self.making_way or not self.by_hand
        if stands_back and now < self.vacant_since + STANDS_BACK_S:
            return
        self._lead(last)

    def _lead(self, last: int, after: str = "") -> None:
        number = leadership.take(self.run, last, self.job)
        if number is None:
            return
        self.number, self.vacant_since = number, None
        alone = self.making_way or self.tasks == 1  # nobody else would do what this controller cannot do to its own job
        options = [*([] if alone else ["--pilot"]), *([f"--after={after}"] if after else [])]
        self.process = keeper.start(self.run, number, *options)

    def _say_who_leads(self) -> None:
        """For who reads the output of this job and looks for that of the run."""
        who = leadership.leader(self.run)
        if who is not None and who.number not in (self.told, self.number):
            self.told = who.number
            print(f"the controller runs on {who.host}, in Slurm job {who.job}", flush=True)
