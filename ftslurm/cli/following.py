"""Shows a run until it ends, and turns its outcome into an exit code."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console

from ftslurm.api import state
from ftslurm.cli.interrupts import Interrupts
from ftslurm.config.schema import Config
from ftslurm.monitor import closed_output, summary, table
from ftslurm.monitor.status import RunStatus
from ftslurm.run import inbox
from ftslurm.run.directory import RunDir
from ftslurm.run.facts import Watcher


def follow_run(config: Config, run: RunDir, interrupts: Interrupts) -> int:
    """Show the run until it ends. Ctrl-C stops a local run, as a closed terminal does; a run on Slurm continues.

    Returns:
        The exit code: 0 the run succeeded, 1 it failed or lost its controller, 130 interrupted.
    """
    console = table.console()
    watcher, local = Watcher(config, run), config.cluster.kind == "local"
    show = partial(follow, run, watcher, console=console, poll_s=0.2 if local else 0.5)
    try:
        interrupts.heed()
        status = _shown(config, run, watcher, show)
    except (KeyboardInterrupt, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return _interrupted(config, run, console, show)
    if status.outcome == "running":
        closed_output.say(f"ftslurm: {state.no_verdict(config, run)}", sys.stderr)
        return 1
    if local:
        state.wait_for_exit(run)
    console.print(summary.summary(status, run, followed=True))
    return 0 if status.outcome == "succeeded" else 1


def follow(run: RunDir, watcher: Watcher, **options: Any) -> RunStatus:
    """Show a run until it ends or nothing can come any more (table.follow)."""

    def note() -> str | None:
        return watcher.look().note if run.events.exists() else None  # that it starts is no problem

    return table.follow(run, until=lambda: not watcher.there(), note=note, **options)


def _shown(config: Config, run: RunDir, watcher: Watcher, show: Callable[..., RunStatus]) -> RunStatus:
    """Show the run, on even if nobody reads the output any more: its exit code is still needed.

    Raises:
        KeyboardInterrupt: the user has pressed Ctrl-C.
        OSError: with EIO, the terminal is gone.
    """
    try:
        if config.cluster.kind != "local":
            wait_for_start(run, watcher)
        return show()
    except BrokenPipeError:
        closed_output.discard()
        return show()


def _interrupted(config: Config, run: RunDir, console: Console, show: Callable[..., RunStatus]) -> int:
    """Stop a local run; leave one on Slurm. Return the exit code. The terminal may be gone."""
    if config.cluster.kind != "local":
        closed_output.say(f"\nThe run goes on. Come back with: ftslurm status -w {run.root}")
        closed_output.say(f"End it with: ftslurm stop {run.root}")
        return 130
    inbox.put(run.inbox, "stop")
    closed_output.say(f"\nstopping (scripts have {config.stop.grace_s:g} s, stop.grace_s) ...")
    try:
        console.print(summary.summary(show(history=0), run))
    except OSError:
        closed_output.discard()
        console.print(summary.summary(show(history=0), run))
    return 130


def wait_for_start(run: RunDir, watcher: Watcher) -> None:
    """Print why the job waits in the queue, until its controller has begun the journal, or never will."""
    printed = None
    while not run.events.exists() and watcher.there():
        note = watcher.look().note
        if note != printed and not run.events.exists():
            printed = note
            print(note, flush=True)
        time.sleep(0.2)
