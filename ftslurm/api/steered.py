"""What a run can be told: each method leaves a command in its inbox, and returns the answer of its controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftslurm.api import answers, ending
from ftslurm.api.answers import Answer, Conversation
from ftslurm.core.groups import ranks
from ftslurm.core.lineage import rollover
from ftslurm.core.state.unit_names import group_unit
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone
from ftslurm.monitor.stack_text import read_stacks
from ftslurm.protocol.records import (
    Command,
    CommandDone,
    FaultInjected,
    FaultRefused,
    RunRequeued,
    Scaled,
    StacksTaken,
)
from ftslurm.protocol.run_states import FAULTS
from ftslurm.run import facts, inbox, kept_state
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.security import programs
from ftslurm.slurm import commands
from ftslurm.words import listed, offer

STACKS_S = 30.0  # longest wait for the stacks: faulthandler takes a second at most


@dataclass(frozen=True)
class Stacks:
    """The stacks of one rank."""

    rank: int
    node: str | None
    path: Path
    text: str


class Steered:
    """A run that can be told something.

    Each method but `stop` raises EnvironmentProblem if the run has no controller (it is over, has not started, or has
    lost it) or what is asked for cannot be, and NotDone if the controller refuses, or does not answer.
    """

    files: RunDir

    def _ask(self, what: str, timeout_s: float | None = None, **fields: Any) -> Answer[CommandDone]:
        return Conversation(self.files).ask(what, CommandDone, timeout_s, **fields)

    def stop(self, save: bool = False) -> str:
        """End the run: SIGTERM to the scripts, SIGKILL after stop.grace_s. Return what has happened, for a person.

        Args:
            save: save a checkpoint before, as `save` does; if that fails, the run goes on.

        Raises:
            NotDone: no checkpoint could be saved, or the controller does not answer.
        """
        run, name, saved = self.files, self.files.root.name, ""
        if save:
            try:
                saved = f"; saved: {self.save().record.text}"
            except FtslurmError as error:
                raise NotDone(
                    f"{error}. Nothing is stopped: ftslurm stop {run.root} stops it without saving"
                ) from error
        talk = Conversation(run)
        config = talk.config
        if (done := ending.without_controller(config, run, facts.look(config, run, ended=True))) is not None:
            return done
        try:
            if talk.status.started is None or last_event(run.events) == RunRequeued.event:
                inbox.put(run.inbox, "stop")
                return f"{name} does not run now: it stops as soon as its controller starts"
            talk.ask("stop", Command)
        except EnvironmentProblem as error:
            raise EnvironmentProblem(f"{error}. End it with: {ending.by_hand(config, run)}") from error
        except NotDone as error:
            found = facts.look(config, run)  # the controller may have ended meanwhile
            if found.state == "lost":
                return f"{name} cannot be stopped: {found.why}"
            if talk.status.outcome == "running":
                later = f"It stops when its controller reads {run.inbox}"
                raise NotDone(f"{error}. {later}. End it with: {ending.by_hand(config, run)}") from error
        return f"{name} is stopping{saved}"

    def scale(self, groups: int) -> Answer[Scaled]:
        """Give the run more groups, or fewer; the others train on meanwhile."""
        return Conversation(self.files).ask("scale", Scaled, groups=groups)

    def restart(self, group: int) -> Answer[CommandDone]:
        """Have a group leave politely and start again as its next attempt, which counts against no budget."""
        return self._ask("restart", group=group)

    def save(self) -> Answer[CommandDone]:
        """Save a checkpoint now; return when it is complete, with its `step` and `path` in the answer's record."""
        return self._ask("save", rollover.USERS_PATIENCE_S + answers.ANSWER_S)

    def drain(self, node: str) -> Answer[CommandDone]:
        """Leave a node out: nothing is placed there, and what runs there moves away politely while there is room."""
        return self._ask("drain", node=node)

    def undrain(self, node: str) -> Answer[CommandDone]:
        """Use a drained node again."""
        return self._ask("undrain", node=node)

    def stacks(self, group: int, rank: int | None = None) -> list[Stacks]:
        """Take the stacks of a rank of a group now; with None, of all its ranks."""
        talk = Conversation(self.files)
        command = talk.ask("stacks", CommandDone, group=group, rank=rank).record.command
        wanted = {rank} if rank is not None else set(range(talk.ranks))
        taken = talk.stacks(command, len(wanted), STACKS_S)
        if missing := wanted.difference(one.rank for one in taken):
            raise NotDone(
                f"no stacks of rank {listed(sorted(missing))} of group {group} within {STACKS_S:g} s: its guard does "
                f"not answer, or the rank has ended; see ftslurm logs {self.files.root} --group {group}"
            )
        return [_read(self.files, one) for one in sorted(taken, key=lambda one: one.rank)]

    def attach(self, group: int, rank: int = 0) -> list[str]:
        """Return the command that starts a shell beside a rank, with the rank's environment; run it in a terminal.

        On Slurm it is an srun into the rank's job, on its node; it does not work in the environment of another job
        (slurm/commands.scrubbed). No secret stands in the command.
        """
        run, talk = self.files, Conversation(self.files)
        talk.check(group=group, rank=rank)
        kept = kept_state.read(run)
        unit = next((unit for unit in kept.live if unit.group == group), None) if kept is not None else None
        if unit is None:
            raise NotDone(f"group {group} does not run now (ftslurm status {run.root})")
        local, slurm_step = talk.config.local, unit.current.slurm_step or ""
        if None in unit.current.hosts or not (local or slurm_step):
            raise NotDone(f"group {group} is starting: where its ranks run is not known yet; try again in a moment")
        task, row = next((task, row) for task, row in enumerate(ranks.of(unit)) if row.rank == rank)
        shell = programs.module("ftslurm.guard.shell", f"--run={run.root}", f"--step={unit.id}", f"--task={task}")
        shell.append(f"--name=rank {rank} of group {group} (attempt {unit.attempt})")
        if local:
            return shell
        srun = commands.srun_command(
            job=slurm_step.partition(".")[0],
            name="attach",
            nodes=[row.node],
            gpus=bool(talk.config.groups.gpus),
            chdir=str(run.root),
            extra=[*commands.memory_of(talk.config.cluster.srun), "--pty"],
        )
        return [*srun, *shell]

    def inject(self, fault: str, group: int | None = None, rank: int | None = None) -> Answer[FaultInjected]:
        """Do one real fault to the run, to see it recover; `ftslurm inject --help` names them."""
        if fault not in FAULTS:
            raise EnvironmentProblem(f"{fault!r} is no fault; {offer(fault, FAULTS)} (ftslurm inject --help)")
        if fault == "lighthouse" and (group is not None or rank is not None):
            raise EnvironmentProblem("the Lighthouse belongs to no group: leave out the group and the rank")
        if fault == "cancel" and rank is not None:
            raise EnvironmentProblem("cancel ends the whole step of a group: leave out the rank")
        return Conversation(self.files).ask(
            "inject", FaultInjected, refused=FaultRefused, kind=fault, group=group, rank=rank or 0
        )


def _read(run: RunDir, taken: StacksTaken) -> Stacks:
    log = run.rank_log(group_unit(taken.group), taken.attempt, taken.rank)
    if not (text := read_stacks(log, taken.command, taken.size or 0)):
        raise NotDone(f"the stacks of rank {taken.rank} are not at the end of {log}: it cannot be written, or read")
    return Stacks(taken.rank, taken.node, log, text)
