"""Steers a running run: what a user asks of its groups and its nodes."""

from __future__ import annotations

from ftslurm.api.answers import Answer, Conversation
from ftslurm.protocol.records import CommandDone, CommandRefused
from ftslurm.run.directory import RunDir


def restart(run: RunDir, group: int, rank: int | None = None) -> Answer[CommandDone]:
    """Have a group leave politely and start again as its next attempt, which counts against no budget.

    Args:
        rank: the rank that it is for, named in the journal with its node; the whole group starts again.

    Raises:
        EnvironmentProblem: the run has no controller.
        NotDone: the controller refuses, or does not answer.
    """
    ask = Conversation(run, "no group can start again").ask
    return ask("restart", done=CommandDone, refused=CommandRefused, group=group, rank=rank)
