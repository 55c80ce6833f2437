"""Ensure that one controller at a time leads a run, also where several could: a job and its successor, for example.

A process takes the lead by creating the next numbered file in RUN/leaders exclusively (O_EXCL), which works on network
file systems too. The highest number leads; a controller that sees a higher number than its own stops at once and leaves
its steps to the new leader. There are no locks, so nothing has to be unlocked when a node dies.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.protocol.run_states import exit_code
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import integer, last_line, text
from ftslurm.security import owned_files

SUPERSEDED = "superseded"  # outcome of a controller that another one has replaced as leader


class Superseded(Exception):
    """Another controller has taken the lead."""


def newest(run: RunDir) -> int:
    """Return the number of the newest leader; 0: there was none.

    Raises:
        OSError: the run directory cannot be read.
    """
    try:
        return max((int(path.name) for path in run.leaders.iterdir() if path.name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


def take(run: RunDir, after: int | None = None) -> int | None:
    """Take the lead.

    Args:
        after: number of the last leader when the lead was found vacant (`vacant`); None: of the newest one now.

    Returns:
        The number of this process as leader; None: another process was faster.

    Raises:
        OSError: the run directory cannot be written.
    """
    number = (newest(run) if after is None else after) + 1
    run.leaders.mkdir(mode=0o700, exist_ok=True)
    try:
        owned_files.write_file(run.leaders / _name(number), b"", durable=False)
    except FileExistsError:
        return None
    return number if held(run, number) else None


def held(run: RunDir, number: int) -> bool:
    """Return whether leader `number` still leads; also true while the run directory cannot be read."""
    try:
        return newest(run) <= number
    except OSError:
        return True


def vacant(run: RunDir, config: Config, watch: liveness.Watch, own: int = 0, jitter_s: float = 0.0) -> int | None:
    """Return the number of the last leader if it no longer leads and the run is not over; else None.

    Args:
        watch: what this process has observed of the leader; the silence counts from its first observation.
        own: number of the last leader that was a child of this process, and has ended.
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
    patience_s = (config.heartbeat_s if 0 < own == number else config.health.lost_after_s) + jitter_s
    return None if any(silent_s < patience_s for silent_s in silences if silent_s is not None) else number


def outcome(run: RunDir) -> str | None:
    """Return how the run has ended; None: it has not."""
    last = last_line(run.events) or {}
    return text(last, "outcome") or "failed" if text(last, "event") == "run_finished" else None


def final(run: RunDir) -> str | None:
    """Return how the run has ended for good: no job of it that is started again goes on with it; None: one would.

    A user's stop is final; one that Slurm or a signal has asked for is not.
    """
    ended = outcome(run)
    return None if ended == "stopped" and integer(last_line(run.events) or {}, "by") is None else ended


def code(run: RunDir) -> int:
    """Return the exit code of the run; 0: it has not ended."""
    how = outcome(run)
    return 0 if how is None else exit_code(how, (last_line(run.events) or {}).get("missing"))


def is_over(run: RunDir) -> bool:
    """Return whether the run has ended."""
    return outcome(run) is not None


def _name(number: int) -> str:
    return f"{number:04d}"
