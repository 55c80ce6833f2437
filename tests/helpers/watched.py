"""RunManager outside of a worker, with the watchers that a test gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftslurm.protocol import messages
from ftslurm.protocol.position import Position
from ftslurm.worker import patch_fit, torchft_patches
from ftslurm.worker.commits import Commits
from ftslurm.worker.lineage_guard import LineageGuard
from ftslurm.worker.parameter_sessions import Sessions
from ftslurm.worker.progress import Observer
from ftslurm.worker.quorum_abort import BrokenQuorums
from ftslurm.worker.session import Watchers
from ftslurm.worker.unhealed import Watch


def watchers(
    report: Callable[[messages.Progress], None] = lambda _: None,
    lineage: LineageGuard | None = None,
    warn: Callable[[str], None] = print,
) -> Watchers:
    """Return watchers that refuse nothing, unless they are given a lineage guard."""
    lineage = lineage or LineageGuard(print)
    quorums = BrokenQuorums(lineage.managers, Position())
    return Watchers(Observer(report, Position()), lineage, Watch(warn), Commits(warn), quorums, Sessions())


def manager_class(watching: Watchers | None = None) -> Any:
    """Return a RunManager with watchers of its own."""
    from ftslurm.worker.run_manager import RunManager

    return type("RunManager", (RunManager,), {"_ftslurm": watching or watchers()})


def mend() -> list[str]:
    """Apply the patches of torchft's defects; return what is said of those that do not fit."""
    left_out: list[str] = []
    patch_fit.apply(torchft_patches.INSTALLS, left_out)
    return left_out
