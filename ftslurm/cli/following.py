"""Shows a run until it ends, and turns its outcome into an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console

from ftslurm.api import state
from ftslurm.cli.interrupts import Interrupts
from ftslurm.config.schema import Config
from ftslurm.monitor import closed_output, summary, table
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol.run_states import exit_code
from ftslurm.run import inbox
from ftslurm.run.directory import RunDir
from ftslurm.run.facts import Watcher


def follow_run(config: Config, run: RunDir, interrupts: Interrupts) -> int:
    """Show the run until it ends. Ctrl-C stops a local run, as a closed terminal does; a run on Slurm continues.

    Returns:
        The exit code: that of the run, 1 if it has lost its controller, 130 if interrupted.
    """
    console = table.console()
    show = partial(follow, config, run, console=console)
    try:
        interrupts.heed()
        status = _shown(show)
    except (KeyboardInterrupt, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return _interrupted(config, run, console, show)
    if status.outcome == "running":
        closed_output.say(f"ftslurm: {state.no_verdict(config, run)}", sys.stderr)
        return 1
    if config.local:
        state.wait_for_exit(run)
    console.print(summary.summary(status, run, followed=True))
    return exit_code(status.outcome, status.missing)


def follow(config: Config, run: RunDir, **options: Any) -> RunStatus:
    """Show a run, also while it waits for its start, until it ends or nothing can come any more (table.follow)."""
    watcher = Watcher(config, run)

    def note() -> str | None:
        starts, found = config.local and not run.events.exists(), watcher.look()
        return None if starts or found.never else found.note  # that it starts is no problem

    return table.follow(run, until=lambda: not watcher.there(), note=note, **options)


def _shown(show: Callable[..., RunStatus]) -> RunStatus:
    """Show the run, on even if nobody reads the output any more: its exit code is still needed.

    Raises:
        KeyboardInterrupt: the user has pressed Ctrl-C.
        OSError: with EIO, the terminal is gone.
    """
    try:
        return show()
    except BrokenPipeError:
        closed_output.discard()
        return show()


def _interrupted(config: Config, run: RunDir, console: Console, show: Callable[..., RunStatus]) -> int:
    """Stop a local run; leave one on Slurm. Return the exit code. The terminal may be gone."""
    if not config.local:
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
