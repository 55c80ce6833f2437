"""Finds the rank of a running group, and the command of a shell beside it."""

from __future__ import annotations

from ftslurm.api.answers import Conversation
from ftslurm.core.groups import ranks
from ftslurm.core.state.unit_names import group_unit
from ftslurm.errors import EnvironmentProblem, NotDone
from ftslurm.run.directory import RunDir
from ftslurm.run.replay import read_past
from ftslurm.security import programs
from ftslurm.slurm import commands


def attach_command(run: RunDir, group: int, rank: int = 0) -> list[str]:
    """Return the command that starts a shell beside a rank, with the rank's environment; run it in a terminal.

    On Slurm it is an srun into the rank's job, on its node; it does not work in the environment of another job
    (slurm/commands.scrubbed). No secret stands in the command.

    Raises:
        EnvironmentProblem: there is no such group or rank, or the run has no controller.
        NotDone: the group does not run now.
    """
    talk = Conversation(run, "no rank is left")
    groups, size = len(talk.status.groups), talk.config.groups.nodes * talk.config.groups.workers
    for what, number, count in (("group", group, groups), ("rank", rank, size)):
        if not 0 <= number < count:
            raise EnvironmentProblem(f"there is no {what} {number}; this run has {what}s 0 to {count - 1}")
    past, _ = read_past(run)
    live = past.live.get(group_unit(group)) if past is not None else None
    if live is None:
        raise NotDone(f"group {group} does not run now (ftslurm status {run.root})")
    task, row = next((task, row) for task, row in enumerate(ranks.table(list(live.hosts))) if row.rank == rank)
    shell = programs.module("ftslurm.guard.shell", f"--run={run.root}", f"--step={live.id}", f"--task={task}")
    shell.append(f"--name=rank {rank} of group {group} (attempt {live.attempt})")
    if talk.config.cluster.kind == "local":
        return shell
    if live.slurm_step is None:
        raise NotDone(f"group {group} is starting: its Slurm step is not known yet; try again in a moment")
    srun = commands.srun_command(
        job=live.slurm_step.partition(".")[0],
        name="attach",
        nodes=[row.node],
        tasks_per_node=1,
        gpus=bool(talk.config.groups.gpus),
        chdir=str(run.root),
        extra=[*commands.memory_of(talk.config.cluster.srun), "--pty"],
    )
    return [*srun, *shell]
