"""Steers a running run: what a user asks of its groups and its nodes."""

from __future__ import annotations

from ftslurm.api.answers import ANSWER_S, Answer, Conversation
from ftslurm.core.lineage import rollover
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


def save(run: RunDir) -> Answer[CommandDone]:
    """Save a checkpoint now; return when it is complete, with its `step` and `path` in the answer's record.

    Raises:
        EnvironmentProblem: the run has no controller.
        NotDone: no script of the run can save, it could not be saved, or the controller does not answer.
    """
    ask = Conversation(run, "nothing is left to save").ask
    return ask("save", done=CommandDone, refused=CommandRefused, timeout_s=rollover.USERS_PATIENCE_S + ANSWER_S)


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
