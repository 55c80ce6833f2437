"""Reads in a few lines how a run stands, without its whole journal: one row of a list of many runs."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from ftslurm.config import compose
from ftslurm.config.schema import ClusterConfig, Config
from ftslurm.errors import FtslurmError
from ftslurm.monitor.status import aged
from ftslurm.monitor.story import Story
from ftslurm.protocol import records
from ftslurm.protocol.run_states import State
from ftslurm.run import facts, liveness, results
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import Entry, not_readable
from ftslurm.run.facts import Queue
from ftslurm.run.journal import first_line, last_line, number
from ftslurm.run.journal_lines import read
from ftslurm.run.standing import Facts, standing


@dataclass(frozen=True)
class Brief:
    """One run, in short."""

    id: str
    dir: str
    user: str
    state: State
    created: float  # in unix seconds
    name: str | None = None
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    groups: int | None = None
    groups_at_work: int | None = None  # that commit steps; without a quorum, that run
    restarts: int | None = None
    cluster: str | None = None  # cluster.kind: local, slurm or array
    job: str | None = None  # Slurm job of the controller; of a local run, its process
    finished: float | None = None
    note: str | None = None  # why it waits, has ended or cannot be read
    sweep: str | None = None  # the sweep that it belongs to (run -m)
    value: list[float | None] | None = None  # what its script has reported, a number for each objective; null: NaN


def brief(entry: Entry, queue: Queue | None = None, watch: liveness.Watch | None = None, wait: bool = True) -> Brief:
    """Return how a run stands. A run that is over costs two reads.

    Args:
        queue: what Slurm says; None: it is not asked.
        watch, wait: see facts.look.
    """
    run, head = entry.run, first_line(entry.run.events)
    known = Brief(run.root.name, str(run.root), entry.user, "unreadable", entry.created)
    if not entry.readable:
        return replace(known, note=not_readable(entry))
    started = read(head or {})
    if isinstance(started, records.RunStarted):
        known = replace(known, groups=started.groups, total_steps=started.total_steps, name=started.name)
        kind = "slurm" if started.mode == "steps" else started.mode
        config = Config(cluster=ClusterConfig(kind=kind))  # type: ignore[arg-type]  # as the journal has it
        config.internal.sweep = started.sweep
    else:  # it waits
        config = _config(run)
    known = replace(known, sweep=config.internal.sweep, cluster=config.cluster.kind, job=facts.job_of(run))
    if known.sweep is not None:
        with suppress(ValueError):
            numbers = results.read(run)
            known = replace(known, value=[one if math.isfinite(one) else None for one in numbers or ()] or None)
    line = last_line(run.events)
    last = None if line is None else read(line)
    if line is not None and isinstance(last, records.RunFinished):
        found = standing(Facts(begun=True, end=last))
        known = replace(known, step=last.steps, restarts=last.restarts, finished=number(line, "time"))
        return replace(known, state=found.state, note=found.note)
    try:
        known = _unfinished(known, run)
    except FtslurmError as error:
        return replace(known, note=str(error))
    found = facts.look(config, run, queue or Queue(), watch=watch, wait=wait)
    rate = known.steps_per_s if found.state == "running" else None
    return replace(known, state=found.state, note=found.note, steps_per_s=rate)


def _config(run: RunDir) -> Config:
    """Return the run's settings, or the defaults if they cannot be read."""
    try:
        return compose.load(run.config, own=False)
    except FtslurmError:
        return Config(cluster=ClusterConfig(kind="slurm"))


def _unfinished(known: Brief, run: RunDir) -> Brief:
    """Add what the journal of a run that is not over says; raise FtslurmError if it cannot be read."""
    status = aged(Story(run).status, time.time())
    if status.started is None:
        return known
    return replace(
        known,
        step=status.step,
        groups=len([group for group in status.groups if not group.leaves]) or known.groups,
        groups_at_work=status.at_work,
        steps_per_s=status.steps_per_s,
        restarts=status.restarts,
    )
