"""Injects one real fault into a running run."""

from __future__ import annotations

import difflib

from ftslurm.api.answers import Answer, Conversation, by_me
from ftslurm.config.schema import Config, most_groups
from ftslurm.config.validate import FAULTS
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import FaultInjected, FaultRefused
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir


def inject(run: RunDir, fault: str, group: int | None = None, rank: int | None = None) -> Answer[FaultInjected]:
    """Inflict one real fault.

    Raises:
        EnvironmentProblem: there is no such fault, group or rank, or the run has no controller.
        NotDone: the controller refuses, or does not answer.
    """
    config = configuration.to_steer(run)
    check_fault(fault)
    _check_target(config, fault, group, rank)

    def mine(answer: FaultInjected | FaultRefused) -> bool:
        """Whether this answers this command, and not another drill."""
        if answer.kind != fault or not by_me(answer):
            return False
        there = fault == "cancel" or answer.rank in (None, rank or 0)
        return fault == "lighthouse" or (group in (None, answer.group) and there)

    ask = Conversation(run, "there is nothing to harm", config).ask
    return ask("inject", done=FaultInjected, refused=FaultRefused, mine=mine, fault=fault, group=group, rank=rank or 0)


def check_fault(fault: str) -> None:
    """Refuse a fault that does not exist.

    Raises:
        EnvironmentProblem: it does not; the message names the nearest one.
    """
    if fault not in FAULTS:
        near = difflib.get_close_matches(fault.lower(), FAULTS, n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise EnvironmentProblem(f"{fault!r} is no fault; {hint} are {', '.join(FAULTS)} (ftslurm inject --help)")


def _check_target(config: Config, fault: str, group: int | None, rank: int | None) -> None:
    """Refuse a group or rank that the run does not have, or the fault does not take."""
    if fault == "lighthouse" and (group is not None or rank is not None):
        raise EnvironmentProblem("the Lighthouse belongs to no group: leave out the group and the rank")
    if fault == "cancel" and rank is not None:
        raise EnvironmentProblem("cancel ends the whole step of a group: leave out the rank")
    groups, size = most_groups(config), config.groups.nodes * config.groups.workers
    if group is not None and not 0 <= group < groups:
        raise EnvironmentProblem(f"there is no group {group}; this run has {_numbered(groups, 'group')}")
    if rank is not None and not 0 <= rank < size:
        raise EnvironmentProblem(f"there is no rank {rank}; a group of this run has {_numbered(size, 'rank')}")


def _numbered(count: int, noun: str) -> str:
    return f"one {noun}, number 0" if count == 1 else f"{noun}s 0 to {count - 1}"
