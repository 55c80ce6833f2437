"""Waits for the controller's answer to a command.

A command is a file in the run's inbox. The controller answers it with a line in the journal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor import sentences
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import fold, fold_all
from ftslurm.protocol.records import FaultInjected, FaultRefused, JournalEvent, Scaled, ScaleRefused
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader
from ftslurm.run.journal_filter import Skim
from ftslurm.run.journal_lines import read
from ftslurm.security.terminal import readable
from ftslurm.submission import jobs_of_run

ANSWER_S = 10.0  # longest wait for an answer; the controller reads its inbox four times a second
POLL_S = 0.05
Answer = FaultInjected | FaultRefused | Scaled | ScaleRefused


def read_status(reader: JournalReader) -> RunStatus:
    """Read the journal up to its present end."""
    return fold_all(map(readable, Skim().read(reader)))


def status_of_running(config: Config, run: RunDir, reader: JournalReader, impossible: str) -> RunStatus:
    """Read the status of a run that has a controller.

    Args:
        impossible: the action that a finished run does not allow, for the message.

    Raises:
        EnvironmentProblem: the run is over, has not started, or has lost its controller.
    """
    status = read_status(reader)
    if status.outcome != "running":
        raise EnvironmentProblem(f"{run.root.name} is over: {sentences.ended(status.outcome)}; {impossible}")
    why = jobs_of_run.abandoned(config, run)
    if why is not None or status.started is None:
        raise EnvironmentProblem(f"{run.root.name} does not run: {why or 'it has not started yet'}")
    return status


def is_mine(answer: Answer) -> bool:
    """Return whether this user gave the command."""
    return answer.by in (None, os.getuid())


def wait_for_answer(
    reader: JournalReader, status: RunStatus, is_answer: Callable[[JournalEvent], bool]
) -> tuple[Event | None, RunStatus]:
    """Wait until the journal has the answer, or the run has ended, or ANSWER_S seconds have passed."""
    deadline = time.monotonic() + ANSWER_S
    while status.outcome == "running" and time.monotonic() < deadline:
        for event in map(readable, reader.iter_new()):
            status = fold(status, event)
            if is_answer(read(event)):
                return event, status
        time.sleep(POLL_S)
    return None, status


def print_answer(
    run: RunDir, reader: JournalReader, status: RunStatus, is_answer: Callable[[JournalEvent], bool], done: type[Answer]
) -> int:
    """Wait for the line that answers a command, and print it.

    Returns:
        The exit code: 0 if the command was carried out, else 1.
    """
    event, status = wait_for_answer(reader, status, is_answer)
    if event is not None:
        print(sentences.describe(event, status))
        return 0 if isinstance(read(event), done) else 1
    if status.outcome != "running":
        print(f"{run.root.name} {sentences.ended(status.outcome)} before it could do that", file=sys.stderr)
    else:
        print(
            f"the controller of {run.root.name} has not answered within {ANSWER_S:g} s; what it does is in "
            f"{run.controller_log}",
            file=sys.stderr,
        )
    return 1
