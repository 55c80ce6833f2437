"""Long random journals: groups commit together, and fail or stand still at times."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import example_journal as ex
from folded import fold

from ftslurm.monitor.status import RunStatus
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event
from ftslurm.run.journal_lines import read
from ftslurm.run.journal_writer import Journal


def history(dice: random.Random, groups: int, lines: int, failures: float) -> Iterator[ex.Line]:
    """Yield the lines of a random run: groups commit together, and fail or stand still at times."""
    attempts, down, step, now = [0] * groups, dict[int, float](), 0, 0.0
    reached = dict[int, int]()  # by the present attempt of a group
    every_s = dice.choice([1.0, 8.0])
    yield ex.started(groups, total_steps=None)
    for group in range(groups):
        yield from (ex.launched(0.1, group), ex.ready(0.2, group), ex.joined(0.3, group, 1))
    written = 0
    while written < lines:
        still = dice.random() < failures
        step += 0 if still else dice.randrange(1, 5)
        for group in range(groups):
            now += every_s / groups
            if group in down:
                if now >= down[group]:
                    del down[group]
                    yield ex.launched(now, group, attempts[group])
                    yield ex.ready(now, group, attempts[group])
                    yield ex.joined(now, group, step, attempts[group], recovery_s=2.0)
                continue
            gap_s = None if dice.random() < failures else round(0.3 + dice.random() * dice.choice([0.1, 0.2, 9.0]), 4)
            counts: dict[str, Any] = {"committed": int(not still), "aborted": int(still), "gap_s": gap_s}
            yield ex.progress(now, group, step, attempts[group], groups, **counts)
            reached |= {} if still else {group: step}
            written += 1
        if dice.random() < failures and (alive := sorted(set(range(groups)) - down.keys())):
            yield from failure(dice, now, alive, attempts, down, reached)
    if dice.random() < 0.5:
        yield ex.finished(now + 1, steps=step)


def failure(
    dice: random.Random,
    now: float,
    alive: list[int],
    attempts: list[int],
    down: dict[int, float],
    reached: dict[int, int],
) -> Iterator[ex.Line]:
    """Yield one random event: one or all groups fail, a checkpoint is saved, another controller leads, or odd text."""
    kind = dice.choice(["one", "one", "all", "saved", "led", "garbage"])
    if kind == "saved":
        yield ex.event(now, "checkpoint_saved", group=alive[0], attempt=attempts[alive[0]], step=7, path="p")
    if kind == "led":
        yield ex.started(len(attempts), total_steps=None)
    if kind == "garbage":
        yield ex.event(now, "warning", group=None, text='"event":"progress","group":0,')
    for group in {"one": [dice.choice(alive)], "all": alive}.get(kind, []):
        yield ex.exited(now, group, attempts[group], step=reached.pop(group, None))
        yield ex.event(now, "restart_scheduled", group=group, attempt=attempts[group] + 1, due=ex.START + now)
        attempts[group] += 1
        down[group] = now + dice.choice([0.0, 3.0, 60.0])
    if kind == "all":
        yield ex.event(now, "full_restart", step=99, checkpoint_step=7)


def write(run: RunDir, lines: Iterable[ex.Line]) -> RunDir:
    """Write these lines into the journal, or after those that are there, as a controller does."""
    run.root.mkdir(exist_ok=True)
    now = [ex.START]
    with closing(Journal(run, clock=lambda: now[0])) as journal:
        for count, line in enumerate(lines):
            now[0] = line["time"]
            journal.append(read(line))
            if count % 1000 == 0:
                journal.flush()
    return run


def folded(events: Iterator[dict[str, Any]] | Iterator[Event]) -> RunStatus:
    return fold(RunStatus(), *events)
