"""Add the last words of each group's log to a no_first_step record."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.core.state.unit_names import group_unit
from ftslurm.protocol.records import NoFirstStep, StuckGroup
from ftslurm.run import last_words
from ftslurm.run.directory import RunDir


def with_last_lines(record: NoFirstStep, run: RunDir) -> NoFirstStep:
    """Return the record with `last` of each group: the last words of its rank 0."""
    groups: list[StuckGroup] = []
    for group in record.groups:
        log = run.rank_log(group_unit(group["group"]), group["attempt"], 0)
        groups.append({**group, "last": last_words.of_log(log)})
    return replace(record, groups=tuple(groups))
