"""Gathers what is known of a run from outside: its journal, the file `alive`, Slurm's queue, the process table.

`look` says how a run stands now; a `Watcher` looks again and again.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ftslurm.config.schema import Config
from ftslurm.protocol.records import RunFinished, RunRequeued, RunStarted
from ftslurm.run import leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import first_line, last_line
from ftslurm.run.journal_lines import read
from ftslurm.run.last_words import end_of, of_log
from ftslurm.run.standing import Facts, Standing, standing
from ftslurm.security import owned_files
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import QueuedJob, read_jobs

QUEUE_S = 15.0  # how often Slurm is asked about one run
SUBMITTED_S = 120.0  # so long the submission of a run may take after its directory was made


@dataclass(frozen=True)
class Queue:
    """What squeue says of some users' jobs. Without an answer nothing is concluded from a job that is not in it."""

    users: frozenset[str] = frozenset()  # whose jobs are known, all of them
    jobs: Sequence[QueuedJob] = ()
    asked: float = math.inf  # when, in unix seconds; a job that was submitted later may be missing

    def of(self, run: RunDir, job: str | None) -> list[QueuedJob]:
        """Return the jobs of a run, its controller's and its groups', also those that have ended."""
        if not self.jobs:
            return []
        names, mark, array = {*run.pools(), job}, run.mark(), (job or "").partition("_")[0]
        return [
            one
            for one in self.jobs
            if one.mark == mark or one.name in names or one.name.startswith(f"{array}_")  # submitted by hand
        ]

    def covers(self, run: RunDir) -> bool:
        """Return whether a job of this run that is missing has left Slurm."""
        submitted = 0.0
        with suppress(OSError):
            submitted = run.job_id.stat().st_mtime
        return owner(run) in self.users and submitted <= self.asked


def ask_queue(users: Iterable[str]) -> Queue:
    """Ask Slurm for all jobs of some users."""
    asked, answer = time.time(), client.call(commands.jobs_of_users(*sorted(users)))
    return read_queue(users, answer.out, asked) if answer.ok else Queue()


def read_queue(users: Iterable[str], text: str, asked: float) -> Queue:
    """Return what an answer of squeue says."""
    jobs, whole = read_jobs(text)
    return Queue(frozenset(users if whole else ()), jobs, asked)


def look(
    config: Config,
    run: RunDir,
    queue: Queue | None = None,
    *,
    watch: liveness.Watch | None = None,
    wait: bool = True,
    ended: bool = False,
) -> Standing:
    """Return how a run stands now.

    Args:
        queue: what Slurm says; None: it is asked if that matters.
        watch: what the caller has observed of the controller so far.
        wait: be certain of a silence: the file `alive` must not change for two heartbeats, whatever the clocks say.
        ended: Slurm is asked about a run that is over, too: a job of it may be left, or have been requeued.
    """
    ask = (lambda: ask_queue({owner(run)})) if queue is None else lambda: queue
    return _look(config, run, ask, watch or liveness.Watch(), wait, ended)


def _look(
    config: Config, run: RunDir, ask: Callable[[], Queue], watch: liveness.Watch, wait: bool, ended: bool = False
) -> Standing:
    facts = gather(config, run, ask, watch, ended)
    found = standing(facts)
    if found.state == "silent" and not liveness.stays_silent(run.alive, 2 * config.heartbeat_s, watch, wait):
        found = standing(replace(facts, silent_s=None))
    return found


class Watcher:
    """Looks at one run again and again, and asks Slurm at most every QUEUE_S."""

    def __init__(self, config: Config, run: RunDir) -> None:
        self._config, self._run, self._watch = config, run, liveness.Watch()
        self._queue, self._asked = Queue(), -math.inf

    def look(self) -> Standing:
        """Return how the run stands now. A silence of the controller needs two looks."""
        return _look(self._config, self._run, self._ask, self._watch, wait=False)

    def _ask(self) -> Queue:
        if time.monotonic() >= self._asked + QUEUE_S:
            self._queue, self._asked = ask_queue({owner(self._run)}), time.monotonic()
        return self._queue

    def there(self) -> bool:
        """Return whether a controller may still write to the journal of the run."""
        return self._run.root.is_dir() and self.look().going


def gather(config: Config, run: RunDir, ask: Callable[[], Queue], watch: liveness.Watch, ended: bool) -> Facts:
    """Return what is known of a run.

    Args:
        ask: returns what Slurm says; called if that matters.
        watch, ended: see `look`.
    """
    kind, job, age_s = config.cluster.kind, job_of(run), _age_s(run, watch)
    queue, begun, made_s = Queue(), started(run), liveness.age_s(run.config)
    lives = kind == "local" and process_lives(run)
    over = leadership.is_over(run)
    # In array mode the leader's job may be a pilot's. A live leader spares asking Slurm.
    heard = age_s <= liveness.SILENT_S
    if kind != "local" and job is not None and (ended or not over) and not (kind == "array" and heard and not over):
        queue = ask()
    # Only now the journal is read: a controller that has ended meanwhile has written what it had to.
    first, last = first_line(run.events), last_line(run.events)
    record = read(last or {})
    end = record if isinstance(record, RunFinished) else None
    return Facts(
        kind,
        new=made_s is not None and made_s < SUBMITTED_S,
        begun=first is not None or last is not None,
        end=end,
        alone=end is not None and first == last,
        requeued=isinstance(record, RunRequeued),
        job=job,
        host=begun.host if begun and begun.host != platform.node() else None,
        lives=lives,
        jobs=queue.of(run, job),
        answered=queue.covers(run),
        silent_s=None if heard else age_s,
        complaint=liveness.complaint(run),
        log=_last_line(run.output(job)) if first is None and job else None,
        folder=run.submitit,
    )


def _last_line(output: Path) -> str | None:
    """Return the last words of a job that may have ended before Python ran; None: it has made no output."""
    lines = end_of(output, 4096).decode(errors="replace").splitlines()
    last = lines[-1] if lines else ""
    ours = last.removeprefix("ftslurm: ")  # of the batch script (submission/setup_lines.py), or a refusal
    return (of_log(output) or last if ours == last else ours) if output.exists() else None


def job_of(run: RunDir) -> str | None:
    """Return the Slurm job of a controller (in an allocation: from the journal), or the process of a local run's."""
    begun = started(run)
    return run.job() or (begun.job_id if begun else None)


def started(run: RunDir) -> RunStarted | None:
    """Return the first line of the journal; None: no controller has begun."""
    begun = read(first_line(run.events) or {})
    return begun if isinstance(begun, RunStarted) else None


def _age_s(run: RunDir, watch: liveness.Watch) -> float:
    """Return how long the controller has not been heard, by both clocks; inf: it never was."""
    same_s, age_s = watch.silent_s(run.alive), liveness.age_s(run.alive)
    return math.inf if age_s is None or same_s is None else max(age_s, same_s)


def owner(run: RunDir) -> str:
    """Return the user to whom a run belongs."""
    with suppress(OSError):
        return owned_files.user_name(run.root.stat().st_uid)
    return ""


def process_lives(run: RunDir) -> bool:
    """Return whether the controller of a local run lives here: the one that was started, or that of the journal."""
    begun = started(run)
    processes = (run.job() or "", str(begun.pid) if begun else "")
    return any(pid.isdecimal() and _lives(int(pid)) for pid in processes)


def _lives(pid: int) -> bool:
    """Return whether a process of this machine lives."""
    with suppress(ChildProcessError):
        done, _ = os.waitpid(pid, os.WNOHANG)  # our child, if this process started it
        return done == 0
    return liveness.lives(pid)
