"""Gives a running run more groups, or fewer."""

from __future__ import annotations

from ftslurm.api.answers import Answer, Conversation, by_me
from ftslurm.core.user_requests import why_not_as_many
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import Scaled, ScaleRefused
from ftslurm.run.directory import RunDir


def scale(run: RunDir, groups: int) -> Answer[Scaled]:
    """Change the number of groups.

    Raises:
        EnvironmentProblem: the run can never have so many groups, or has no controller.
        NotDone: the controller refuses, or does not answer.
    """
    talk = Conversation(run, "it cannot become larger or smaller")
    why_not = why_not_as_many(groups, talk.config)
    if why_not is not None:
        raise EnvironmentProblem(f"{run.root.name} cannot have {groups} groups: {why_not}")

    def mine(answer: Scaled | ScaleRefused) -> bool:
        return answer.groups == groups and by_me(answer)

    return talk.ask("scale", done=Scaled, refused=ScaleRefused, mine=mine, groups=groups)
