"""The assignment that a group's step gets when its ranks are known."""

from __future__ import annotations

from pathlib import Path

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Assign
from ftslurm.core.state.model import StepId
from ftslurm.launchers.assignment import assignment
from ftslurm.protocol import messages
from ftslurm.run.directory import RunDir


def test_as_many_groups_as_the_run_may_ever_have_so_that_their_ids_fit(tmp_path: Path) -> None:
    config, run = Config(), RunDir(tmp_path)
    config.cluster.kind, config.groups.max = "local", 4
    action = Assign(StepId("group-0001", 0), group=1, attempt=0, lighthouse="http://n1:1", ranks=())
    told = messages.Order.decode(messages.parse(assignment(config, run, action)))
    assert isinstance(told, messages.Assign)
    assert (told.group, told.groups) == (1, 4)
