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


def drain(run: RunDir, node: str) -> Answer[CommandDone]:
    """Leave a node out: nothing is placed there, and what runs there moves away politely while there is room.

    Raises:
        EnvironmentProblem: the run has no controller.
        NotDone: the controller refuses, or does not answer.
    """
    ask = Conversation(run, "it uses no node").ask
    return ask("drain", done=CommandDone, refused=CommandRefused, node=node)


def undrain(run: RunDir, node: str) -> Answer[CommandDone]:
    """Use a drained node again.

    Raises:
        EnvironmentProblem: the run has no controller.
        NotDone: the controller refuses, or does not answer.
    """
    ask = Conversation(run, "it uses no node").ask
    return ask("undrain", done=CommandDone, refused=CommandRefused, node=node)
