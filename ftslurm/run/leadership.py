"""Ensure that one controller at a time leads a run, also where several could: a job and its successor, for example.

A process takes the lead by creating the next numbered file in RUN/leaders exclusively (O_EXCL), which works on network
file systems too. The highest number leads; a controller that sees a higher number than its own stops at once and leaves
its steps to the new leader. There are no locks, so nothing has to be unlocked when a node dies.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from contextlib import suppress

from ftslurm.config.schema import Config
from ftslurm.protocol.value_class import Value
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import integer, last_event, last_line, text
from ftslurm.security import owned_files

log = logging.getLogger("ftslurm.run.leadership")
SUPERSEDED = "superseded"  # outcome of a controller that another one has replaced as leader


class Superseded(Exception):
    """Another controller has taken the lead."""


class Leader(Value):
    """A process that has taken the lead."""

    job: str | None
    host: str
    pid: int


def newest(run: RunDir) -> int:
    """Return the number of the newest leader; 0: there was none.

    Raises:
        OSError: the run directory cannot be read.
    """
    try:
        return max((int(path.name) for path in run.leaders.iterdir() if path.name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


def leader(run: RunDir) -> Leader | None:
    """Return the newest leader's record, or None if it cannot be read."""
    with suppress(OSError, ValueError, TypeError):
        found = Leader(**json.loads(owned_files.read_text(run.leaders / _name(newest(run)))))
        return found if isinstance(found.pid, int) and found.pid > 0 else None
    return None


def take(run: RunDir, after: int | None = None, job: str | None = None) -> int | None:
    """Take the lead.

    The name of the file is the claim. Its content only lets others detect the leader's end sooner, so a disk that is
    too full to write it is no error.

    Args:
        after: number of the last leader when the lead was found vacant (`vacant`); None: of the newest one now.
        job: id of this process's Slurm job.

    Returns:
        The number of this process as leader; None: another process was faster.

    Raises:
        OSError: the run directory cannot be written.
    """
    number = (newest(run) if after is None else after) + 1
    run.leaders.mkdir(mode=0o700, exist_ok=True)
    who, claim = Leader(job, platform.node(), os.getpid()), run.leaders / _name(number)
    try:
        owned_files.write_file(claim, json.dumps(vars(who)).encode())
    except FileExistsError:
        return None
    except OSError as error:
        if not claim.exists():
            raise
        log.warning("who leads cannot be written to %s: %s", claim, error.strerror)
    return number if held(run, number) else None


def held(run: RunDir, number: int) -> bool:
    """Return whether leader `number` still leads; also true while the run directory cannot be read."""
    try:
        return newest(run) <= number
    except OSError:
        return True


def vacant(
    run: RunDir, config: Config, watch: liveness.Watch, job: str | None, own: int = 0, jitter_s: float = 0.0
) -> int | None:
    """Return the number of the last leader if it no longer leads and the run is not over; else None.

    Args:
        watch: what this process has observed of the leader; the silence counts from its first observation.
        job: of this process, which does not lead; if the last leader had the same one, Slurm has requeued the job.
        own: number of the last leader that was a child of this process.
        jitter_s: additional time that this candidate waits, so that not all candidates act at once.
    """
    try:
        number = newest(run)
    except OSError:
        return None
    last = last_line(run.events) or {}  # not read as a record: keepers and guards start faster without these
    if text(last, "event") == "run_finished":
        return None
    if number == 0 and not last:
        return 0
    if text(last, "event") == "controller_left" and integer(last, "leader") == number:
        return number
    silences = [watch.silent_s(run.alive), watch.silent_s(run.leaders / _name(number))]
    ended = 0 < own == number or _has_ended(leader(run), job)
    patience_s = (config.heartbeat_s if ended else config.health.lost_after_s) + jitter_s
    return None if any(silent_s < patience_s for silent_s in silences if silent_s is not None) else number


def is_over(run: RunDir) -> bool:
    """Return whether the run has ended."""
    return last_event(run.events) == "run_finished"


def _has_ended(last: Leader | None, job: str | None) -> bool:
    """Return whether a leader has certainly ended: it was an earlier start of this job, or a process of this node."""
    if last is None:
        return False
    if job is not None and last.job == job:
        return last.pid != os.getpid()
    return last.host == platform.node() and not liveness.lives(last.pid)


def _name(number: int) -> str:
    return f"{number:04d}"
