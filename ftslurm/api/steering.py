"""Steers a running run: what a user asks of its groups and its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftslurm.api.answers import ANSWER_S, Answer, Conversation
from ftslurm.core.lineage import rollover
from ftslurm.core.state.unit_names import group_unit
from ftslurm.errors import NotDone
from ftslurm.protocol.records import CommandDone, CommandRefused, StacksTaken
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files

STACKS_S = 30.0  # longest wait for the stacks: faulthandler takes a second at most, py-spy ten


@dataclass(frozen=True)
class Stacks:
    """The stacks of one rank."""

    rank: int
    node: str | None
    path: Path
    text: str


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


def stacks(run: RunDir, group: int, rank: int | None = None) -> list[Stacks]:
    """Take the stacks of a rank of a group now; with None, of all its ranks.

    Raises:
        EnvironmentProblem: the run has no controller.
        NotDone: the controller refuses, or does not answer, or a rank does not.
    """
    talk = Conversation(run, "no rank is left")
    asked = talk.ask("stacks", done=CommandDone, refused=CommandRefused, group=group, rank=rank)
    ranks = {rank} if rank is not None else set(range(talk.config.groups.nodes * talk.config.groups.workers))
    records = talk.more(StacksTaken, lambda taken: taken.command == asked.record.command, len(ranks), STACKS_S)
    missing = ranks - {taken.rank for taken in records}
    if missing:
        whose = ", ".join(str(rank) for rank in sorted(missing))
        raise NotDone(
            f"no stacks of rank {whose} of group {group} within {STACKS_S:g} s: its guard does not answer, or the rank "
            f"has ended; see {run.root.name}'s logs: ftslurm logs {run.root} --group {group}"
        )
    return [_read(run, taken) for taken in sorted(records, key=lambda taken: taken.rank)]


def _read(run: RunDir, taken: StacksTaken) -> Stacks:
    path = run.attempt(group_unit(taken.group), taken.attempt) / Path(taken.file).name
    try:
        text = "" if taken.error else owned_files.read_text(path, own=True)
    except OSError as error:
        raise NotDone(f"the stacks of rank {taken.rank} cannot be read: {path}: {error.strerror}") from error
    if taken.error:
        raise NotDone(f"the stacks of rank {taken.rank} could not be taken: {taken.error}")
    return Stacks(taken.rank, taken.node, path, text)
