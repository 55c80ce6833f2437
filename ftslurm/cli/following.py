"""Shows a run until it ends, and turns its outcome into an exit code."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console

from ftslurm.api import waiting
from ftslurm.cli.interrupts import Interrupts
from ftslurm.config.schema import Config
from ftslurm.monitor import closed_output, summary, table
from ftslurm.monitor.status import RunStatus
from ftslurm.run import inbox, liveness
from ftslurm.run.directory import RunDir
from ftslurm.submission import jobs_of_run


def follow_run(config: Config, run: RunDir, interrupts: Interrupts) -> int:
    """Show the run until it ends. Ctrl-C stops a local run, as a closed terminal does; a run on Slurm continues.

    Returns:
        The exit code: 0 the run succeeded, 1 it failed or lost its controller, 130 interrupted.
    """
    console = table.console()
    there = jobs_of_run.still_there(config, run)
    local = config.cluster.kind == "local"
    follow = partial(table.follow, run, console=console, until=lambda: not there(), poll_s=0.2 if local else 0.5)
    try:
        interrupts.heed()
        status = _shown(config, run, there, follow)
    except (KeyboardInterrupt, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return _interrupted(config, run, console, follow)
    if status.outcome == "running":
        closed_output.say(f"ftslurm: {waiting.no_verdict(config, run)}", sys.stderr)
        return 1
    if local:
        waiting.wait_for_exit(there)
    console.print(summary.summary(status, run, followed=True))
    return 0 if status.outcome == "succeeded" else 1


def _shown(config: Config, run: RunDir, there: Callable[[], bool], follow: Callable[..., RunStatus]) -> RunStatus:
    """Show the run, on even if nobody reads the output any more: its exit code is still needed.

    Raises:
        KeyboardInterrupt: the user has pressed Ctrl-C.
        OSError: with EIO, the terminal is gone.
    """
    local = config.cluster.kind == "local"
    note = partial(jobs_of_run.silence, config, run, liveness.Watch())
    try:
        if not local:
            wait_for_start(run, there)
        return follow(note=note)
    except BrokenPipeError:
        closed_output.discard()
        return follow(note=note)


def _interrupted(config: Config, run: RunDir, console: Console, follow: Callable[..., RunStatus]) -> int:
    """Stop a local run; leave one on Slurm. Return the exit code. The terminal may be gone."""
    if config.cluster.kind != "local":
        closed_output.say(f"\nThe run goes on. Come back with: ftslurm status -w {run.root}")
        closed_output.say(f"End it with: ftslurm stop {run.root}")
        return 130
    inbox.put(run.inbox, "stop")
    closed_output.say(f"\nstopping (scripts have {config.stop.grace_s:g} s, stop.grace_s) ...")
    try:
        console.print(summary.summary(follow(history=0), run))
    except OSError:
        closed_output.discard()
        console.print(summary.summary(follow(history=0), run))
    return 130


def wait_for_start(run: RunDir, there: Callable[[], bool]) -> None:
    """Print why the job waits in the queue, until its controller has begun the journal, or never will."""
    printed, asked = None, float("-inf")
    while not run.events.exists() and there():
        if time.monotonic() - asked >= jobs_of_run.QUEUE_S:
            asked = time.monotonic()
            line = jobs_of_run.in_queue(run)
            if line != printed and not run.events.exists():
                printed = line
                print(line, flush=True)
        time.sleep(0.2)
