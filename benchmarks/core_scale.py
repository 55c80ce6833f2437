"""Measure how the cost of the controller, the journal and the Lighthouse grows with the number of replica groups.

    python benchmarks/core_scale.py                                   three tables, for 100 and 1,000 groups
    python benchmarks/core_scale.py --groups 1000 --lines 100000      one row of each, with a shorter journal

All times are CPU time.

Decisions (milliseconds, the best of several tries). The core is pure: `decide(state, events, now, config)`. Each row
brings that many groups of one node and one worker up by the events that a run has (hello, ready, store, first step),
with the default settings, and measures from there:

    idle         decide with no events
    progress     one group tells of its next committed step
    heartbeat    one sign of life of every group, in one batch, as they come when all tell at once
    hangs        the same with the search for hangs on (health.hang_after_s), which is made once a second then
    failure      a rank of one group is killed: the evidence, the end of its step, and the launch of the next attempt
    launch       the decision that launches every group
    start        all decisions from the first hello to the last group's first step, 100 events at a time
    kept         the state as text, whole
    changes      the changes of a failure after a heartbeat of all groups, as text

Journal (seconds): a file of --lines lines, nearly all of them progress, in which groups fail now and then.

    status       `ftslurm status`: journal filter, typed records, status

Lighthouse (milliseconds, benchmarks/lighthouse_rules.py has more): a quorum of all members.

    decision     one decision on a quorum that is issued
    encode       the answer with all members
    first, next  all members join the first and the next quorum, by the server without gRPC
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

import said
from lighthouse_rules import rules_alone, server_alone, timed_ms, wire
from random_journal import history, write

from ftslurm.config.schema import Config
from ftslurm.controller.loop import COLLECT_GARBAGE_AFTER
from ftslurm.core.rules import begin, decide
from ftslurm.core.state.actions import Action, Launch
from ftslurm.core.state.events import (
    Alive,
    Ended,
    Event,
    Granted,
    TaskFailed,
)
from ftslurm.core.state.kept import changes, encode
from ftslurm.core.state.model import Allocation, Evidence, StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit
from ftslurm.lighthouse import output
from ftslurm.monitor.story import Story
from ftslurm.protocol.stages import Stage
from ftslurm.run.directory import RunDir

SIZES = (100, 1_000)
COLUMNS = ("idle", "progress", "heartbeat", "hangs", "failure", "launch", "start", "kept", "changes")
TARGETS = {  # milliseconds, at 1,000 groups
    "idle": 0.5,
    "heartbeat": 10.0,
    "failure": 2.0,
    "launch": 300.0,
    "kept": 100.0,
    "changes": 10.0,
}
LIGHTHOUSE_COLUMNS = {
    "decision": "decision, issued",
    "encode": "encode the answer",
    "first": "server: first join of all",
    "next": "server: next quorum of all",
}
LINES = 1_000_000
FAILURES = 0.003  # probability of a failure per round of one line of progress per group
PER_BATCH = 100
TRIES = 5


def settings(groups: int) -> Config:
    config = Config()
    config.groups.count, config.groups.nodes, config.groups.workers = groups, 1, 1
    return config


class Run:
    """A run of the core with its own clock; its methods return milliseconds."""

    def __init__(self, groups: int) -> None:
        self.config, self.groups, self.now = settings(groups), groups, 1_000.0
        self.nodes = tuple(f"n{group:05d}" for group in range(groups))
        self.state: RunState = begin(self.config)
        self.actions: list[Action] = []
        self.failed = 0

    def decide(self, events: Sequence[Event]) -> float:
        """Decide a millisecond later, and compute the time of the next decision."""
        self.now += 0.001
        start = time.process_time()
        self.state, self.actions = decide(self.state, events, self.now, self.config)
        self.state.wakes  # noqa: B018  the controller asks for it after each decision
        return 1000 * (time.process_time() - start)

    def launch(self) -> float:
        took = self.decide([Granted(Allocation("7", self.nodes))])
        launched = sum(isinstance(action, Launch) for action in self.actions)
        assert launched == self.groups + 1, f"{launched} steps were launched: the Lighthouse and every group are wanted"
        return took

    def start(self) -> float:
        """Bring all groups to their first committed step."""
        light, steps = StepId(LIGHTHOUSE, 0), [StepId(group_unit(group), 0) for group in range(self.groups)]
        took = self.decide([said.hello(light, 0, self.nodes[0]), said.lighthouse_up(light, "http://n00000:29510")])
        stages: list[Callable[[StepId, str], list[Event]]] = [
            lambda step, node: [said.hello(step, 0, node), said.ready(step, 0)],
            lambda step, node: [said.store_up(step, node, 29_500)],
            lambda step, _: [said.first_quorum(step), said.progressed(step, 1, 1, self.groups, 1, 0)],
        ]
        for stage in stages:
            for first in range(0, self.groups, PER_BATCH):
                some = zip(steps[first : first + PER_BATCH], self.nodes[first : first + PER_BATCH], strict=True)
                took += self.decide([event for step, node in some for event in stage(step, node)])
        assert all(unit.joined for unit in self.state.table.all_groups()), "a group has not come to its first step"
        return took

    def idle(self) -> float:
        return self.decide([])

    def progress(self) -> float:
        unit = self.state.table.group(self.groups // 2)
        step = (unit.current.step or 0) + 1
        return self.decide([said.progressed(unit.id, step, 1, self.groups, step, 0)])

    def heartbeat(self) -> float:
        """Deliver a heartbeat of every group, a second after the last."""
        self.now += 1.0
        step = self.state.lineage.step
        return self.decide(
            [Alive(unit.id, 0, self.now, "R", step, Stage.SEEKING_QUORUM, 0.2) for unit in self.state.table]
        )

    def failure(self) -> float:
        """Kill a rank of one group, end its step and launch the next attempt, a decision each."""
        self.failed += 1
        unit = self.state.table.group(self.failed)
        killed = TaskFailed(unit.id, Evidence(0, unit.current.hosts[0], signal=9))
        took = self.decide([killed]) + self.decide([Ended(unit.id, 137)])
        while not any(isinstance(action, Launch) for action in self.actions):
            self.now = max(self.now, self.state.wakes)
            took += self.decide([])
        self._join(self.failed)
        return took

    def _join(self, group: int) -> None:
        """Let a relaunched group join, before the next failure."""
        step, node = self.state.table.group(group).id, self.nodes[group]
        self.decide([said.hello(step, 0, node), said.ready(step, 0)])
        self.decide([said.store_up(step, node, 29_500)])
        after = self.state.lineage.step + 1
        self.decide([said.first_quorum(step), said.progressed(step, after, 1, self.groups, 1, 0)])


def measure(groups: int) -> dict[str, float]:
    """Return the row for so many groups, in milliseconds: the best of several tries, but for launch and start."""
    run = Run(groups)
    row = {"launch": run.launch(), "start": run.start()}
    for name, once in (("heartbeat", run.heartbeat), ("progress", run.progress), ("idle", run.idle)):
        once()
        row[name] = min(once() for _ in range(TRIES))
    run.heartbeat()
    run.config.health.hang_after_s = 60.0
    row["hangs"] = min(run.heartbeat() for _ in range(TRIES))
    run.config.health.hang_after_s = 0.0
    row["failure"] = min(run.failure() for _ in range(TRIES))
    before = run.state
    run.heartbeat()
    run.failure()
    row["kept"] = timed_ms(lambda: json.dumps(encode(run.state)))
    row["changes"] = timed_ms(lambda: json.dumps(changes(before, run.state)))
    return row


def measure_journal(groups: int, lines: int) -> dict[str, float]:
    """Return the row of the second table, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        run = write(RunDir(Path(folder)), history(random.Random(1), groups, lines, FAILURES))  # noqa: S311

        def status() -> None:
            assert len(Story(run).status.groups) == groups

        return {"status": timed_ms(status) / 1000}


def measure_lighthouse(members: int) -> dict[str, float]:
    """Return the row of the third table, in milliseconds."""
    found = rules_alone(members) | wire(members)
    log, kept = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(log, 2)  # the Lighthouse logs every order there
    try:
        found |= asyncio.run(server_alone(members))
    finally:
        output.flush()
        os.dup2(kept, 2)
        os.close(log)
        os.close(kept)
    return {column: found[name] for column, name in LIGHTHOUSE_COLUMNS.items()}


def print_table(title: str, sizes: Sequence[int], row_of: Callable[[int], dict[str, float]]) -> None:
    """Print one row for each size as soon as it is measured."""
    print(title)
    header = False
    for size in sizes:
        row = row_of(size)
        if not header:
            print(f"{'groups':>7}" + "".join(f"{name:>12}" for name in row))
            header = True
        print(f"{size:>7,}" + "".join(f"{value:>12,.3f}" for value in row.values()), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, action="append", help="only runs of so many groups")
    parser.add_argument("--lines", type=int, default=LINES, help="lines of the journal (default: 1,000,000)")
    options = parser.parse_args(argv)
    sizes = options.groups or SIZES
    gc.set_threshold(*COLLECT_GARBAGE_AFTER)  # as in the controller

    def decisions(groups: int) -> dict[str, float]:
        row = measure(groups)
        return {name: row[name] for name in COLUMNS}

    print_table("decisions, milliseconds of CPU time", sizes, decisions)
    print(f"{'target':>7}" + "".join(f"{TARGETS[name]:>12,.3f}" if name in TARGETS else " " * 12 for name in COLUMNS))
    title = f"\na journal of {options.lines:,} lines, seconds of CPU time"
    print_table(title, sizes, lambda groups: measure_journal(groups, options.lines))
    print_table("\na quorum of all, milliseconds of CPU time", sizes, measure_lighthouse)
    return 0


if __name__ == "__main__":
    sys.exit(main())
