"""Reads what Slurm has printed as the controller does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Ask, AskJobs, AskNodes
from ftslurm.core.state.events import Event, JobsSeen, NodeFate
from ftslurm.core.state.model import Job
from ftslurm.launchers.scheduler import Answer
from ftslurm.launchers.srun import Slurm
from ftslurm.run.directory import RunDir


def read(ask: Ask, text: str, code: int = 0, slurm: Slurm | None = None) -> list[Any]:
    """Return the events of an answer."""
    slurm = slurm or Slurm(Config(), RunDir(Path("/nowhere/run")))
    return list(slurm.request(ask).read(Answer(code, text)))


def read_queue(text: str, mark: str, known: Mapping[str, int] = {}) -> tuple[list[Job], bool]:
    """Return the jobs of a run in squeue's answer, and whether all lines were read.

    Args:
        known: the pools of the jobs that the run has submitted.
    """
    slurm = Slurm(Config(), RunDir(Path("/nowhere/run")))
    slurm.mark, slurm.pools = mark, dict(known)
    seen: Event = read(AskJobs(), text, slurm=slurm)[0]
    assert isinstance(seen, JobsSeen)
    return list(seen.jobs), seen.whole


def read_node_fates(text: str) -> list[NodeFate]:
    return read(AskNodes(("n1",)), text)
