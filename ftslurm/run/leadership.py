"""Ensure that one controller at a time leads a run, also where several could: a job and its successor, for example.

Each that takes the lead makes the next file in RUN/leaders, exclusively, which network file systems can too. The
highest number leads; who sees a higher one than its own stops at once and leaves its steps to the new one. Nothing is
locked, so nothing has to be unlocked when a node dies.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from ftslurm.config.schema import Config
from ftslurm.protocol.records import ControllerLeft, RunFinished
from ftslurm.run import inbox, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, last_line
from ftslurm.run.journal_lines import read
from ftslurm.security import owned_files

log = logging.getLogger("ftslurm.run.leadership")
LOOK_S = 0.1  # who has asked for the lead looks this often whether it has been left
SUPERSEDED = "superseded"  # the outcome of a controller after which another one has taken the lead


class Superseded(Exception):
    """Another controller has taken the lead."""


@dataclass(frozen=True)
class Leader:
    """Who has taken the lead."""

    number: int
    job: str | None
    host: str
    pid: int
    time: float


def newest(run: RunDir) -> int:
    """The number of the last that has taken the lead; 0: nobody has.

    Raises:
        OSError: the run directory cannot be read.
    """
    try:
        return max((int(path.name) for path in run.leaders.iterdir() if path.name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


def leader(run: RunDir) -> Leader | None:
    """Who has taken the lead last, as far as it has said so."""
    number = newest(run)
    with suppress(OSError, ValueError, TypeError):
        said = Leader(number, **json.loads(owned_files.read_text(run.leaders / _name(number))))
        return said if isinstance(said.pid, int) and said.pid > 0 else None
    return None


def take(run: RunDir, after: int | None = None, job: str | None = None) -> int | None:
    """Take the lead; None: somebody else was faster.

    The name of the file is the claim. What is in it helps others to see sooner that we are gone; a disk that is too
    full for it must not depose one leader without making another.

    Args:
        after: the last leader that was known when the lead was found vacant (`vacant`); None: whoever is the last now.
        job: id of our Slurm job.

    Returns:
        Our number.

    Raises:
        OSError: the run directory cannot be written.
    """
    number = (newest(run) if after is None else after) + 1
    run.leaders.mkdir(mode=0o700, exist_ok=True)
    who = asdict(Leader(number, job, platform.node(), os.getpid(), time.time()))
    del who["number"]
    try:
        fd = os.open(run.leaders / _name(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return None
    try:
        os.write(fd, json.dumps(who).encode())
        os.fsync(fd)
    except OSError as error:
        log.warning("who leads cannot be written to %s: %s", run.leaders / _name(number), error.strerror)
    finally:
        os.close(fd)
    return number if held(run, number) else None


def held(run: RunDir, number: int) -> bool:
    """Whether nobody has taken the lead after us; also true while the run directory cannot be read."""
    try:
        return newest(run) <= number
    except OSError:
        return True


def vacant(
    run: RunDir, config: Config, watch: liveness.Watch, *, ended: bool = False, jitter_s: float = 0.0
) -> int | None:
    """The number of the last leader, if nobody leads the run any more and it is not over; else None.

    Args:
        watch: what we have seen of the leader so far; its silence counts from the first look on.
        ended: Slurm says that the last leader's job has ended.
        jitter_s: so much longer than others this candidate waits, that they do not all come at once.
    """
    try:
        number = newest(run)
    except OSError:
        return None
    last = last_line(run.events)
    if _is_over(last):
        return None
    if number == 0 and last is None:
        return 0
    match read(last or {}):
        case ControllerLeft(leader=leader_) if leader_ == number:
            return number
    silences = [watch.silent_s(run.alive), watch.silent_s(run.leaders / _name(number))]
    patience_s = (config.health.heartbeat_s if ended else silence_s(config)) + jitter_s
    return None if any(silent_s < patience_s for silent_s in silences if silent_s is not None) else number


def follow(config: Config, run: RunDir, job: str | None, ask: bool = False, jitter_s: float = 0.0) -> int | None:
    """Wait until nobody leads, then take the lead.

    Args:
        job: id of our Slurm job; if the last leader had the same, Slurm has requeued us since.
        ask: do not wait until the leader is lost, ask it to make way: we are here.
        jitter_s: see `vacant`.

    Returns:
        Our number; None: the run is over.
    """
    asked, watch = None, liveness.Watch()
    while not _is_over(last_line(run.events)):
        now = leader(run)
        if ask and now is not None and asked != now.number:
            asked = now.number
            inbox.put(run.inbox, "hand_over", leader=now.number, reason=f"another one is ready on {platform.node()}")
        ended = now is not None and _has_ended(now, job)
        last = vacant(run, config, watch, ended=ended, jitter_s=jitter_s)
        if last is not None and (number := take(run, last, job)) is not None:
            return number
        time.sleep(LOOK_S if ask else config.health.heartbeat_s)
    return None


def _has_ended(last: Leader, job: str | None) -> bool:
    """Whether we know for certain that a leader is gone: it was this very job, or a process of this machine."""
    if job is not None and last.job == job:
        return last.pid != os.getpid()
    if last.host != platform.node():
        return False
    try:
        os.kill(last.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def silence_s(config: Config) -> float:
    """After how much silence a leader counts as lost. Its steps wait for longer (health.orphan_after_s)."""
    return max(3 * config.health.heartbeat_s, config.health.lost_after_s)


def _is_over(last: Event | None) -> bool:
    return isinstance(read(last or {}), RunFinished)


def _name(number: int) -> str:
    return f"{number:04d}"
