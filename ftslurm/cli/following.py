"""Shows a run until it ends, and turns its outcome into an exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ftslurm.api import waiting
from ftslurm.config.schema import Config
from ftslurm.monitor import keys, summary, table
from ftslurm.run import inbox, liveness
from ftslurm.run.directory import RunDir
from ftslurm.submission import jobs_of_run


def follow_run(config: Config, run: RunDir) -> int:
    """Show the run until it ends. Ctrl-C stops a local run; a run on Slurm continues.

    Returns:
        The exit code: 0 the run succeeded, 1 it failed or lost its controller, 130 interrupted.
    """
    console = table.console()
    there = jobs_of_run.still_there(config, run)
    local = config.cluster.kind == "local"
    note = partial(jobs_of_run.silence, config, run, liveness.Watch())
    pressed = keys.of_terminal(may_quit=not local)
    follow = partial(table.follow, run, console=console, until=lambda: not there(), poll_s=0.2 if local else 0.5)
    _interrupt_on(signal.SIGTERM, signal.SIGHUP)
    try:
        if not local:
            wait_for_start(run, there)
        status = follow(note=note, keys=pressed)
        if pressed is not None and pressed.quit:
            raise KeyboardInterrupt
    except BrokenPipeError:
        # The reader of this output has exited. The run continues, and its exit code is still needed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = follow(note=note)
    except KeyboardInterrupt:
        if not local:
            console.print(f"\nThe run goes on. Come back with: ftslurm status {run.root}")
            console.print(f"End it with: ftslurm stop {run.root}")
            return 130
        inbox.put(run.inbox, "stop")
        console.print(f"\nstopping (scripts have {config.stop.grace_s:g} s, stop.grace_s) ...")
        console.print(summary.summary(follow(history=0), run))
        return 130
    if status.outcome == "running":
        print(f"ftslurm: {waiting.no_verdict(config, run)}", file=sys.stderr)
        return 1
    if local:
        waiting.wait_for_exit(there)
    console.print(summary.summary(status, run))
    return 0 if status.outcome == "succeeded" else 1


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


def _interrupt_on(*numbers: int) -> None:
    """Treat the first of these signals as Ctrl-C, except those that are ignored (nohup).

    Later ones are ignored, because `timeout` sends its signal twice; Ctrl-C still ends the wait for the end of the run.
    """
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(number: int, _: Any) -> None:
        for later in heeded:
            signal.signal(later, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in heeded:
        signal.signal(number, interrupt)
