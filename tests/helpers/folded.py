"""The status after some lines of a journal, for tests that go on from one status in several ways."""

from __future__ import annotations

from copy import deepcopy

from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.run.journal import Event


def fold(status: RunStatus, *events: Event) -> RunStatus:
    """Return the status after further lines of the journal; the one before stays as it is."""
    folding = StatusFold(deepcopy(status))
    for event in events:
        folding.apply(event)
    return folding.status
