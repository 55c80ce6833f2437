"""What would happen, without anything happening: `ftslurm plan`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ftslurm.cluster import cpus_per_node, gpus_per_node
from ftslurm.config import Config, describe_job, nodes_needed
from ftslurm.core import ranks
from ftslurm.core.causes import describe
from ftslurm.core.decide import begin, decide
from ftslurm.core.model import (
    Allocation,
    Ended,
    Evidence,
    Granted,
    Launch,
    Phase,
    RunState,
    TaskFailed,
)
from ftslurm.launchers import local, program, srun
from ftslurm.rundir import RunDir
from ftslurm.submit import sbatch_script

LINES = 40  # of the rank table


def plan(config: Config) -> Iterator[str]:
    """The plan, line by line. The decisions shown are the controller's own: the same function makes them."""
    run = RunDir(Path(config.run.dir or f"{config.run.root}/{config.run.name}-TIME-RANDOM"))
    here = config.cluster.kind == "local"
    nodes = tuple(f"node{i + 1}" for i in range(nodes_needed(config)))
    allocation = local.allocation(config) if here else Allocation("JOBID", nodes)
    state, actions = decide(begin(config), [Granted(allocation)], 0.0, config)
    launches = [action for action in actions if isinstance(action, Launch)]

    yield f"job          {describe_job(config)}"
    yield f"run          {run.root}"
    where = "this machine, under the names" if here else f"one Slurm job of {len(nodes)} nodes; say they are called"
    yield f"allocation   {where} {_few(allocation.nodes)}"
    if not here:
        spare = f", {config.cluster.spare_nodes} of them spare" if config.cluster.spare_nodes else ""
        yield f"             {cpus_per_node(config)} CPUs and {gpus_per_node(config)} GPUs on each{spare}"
    yield ""
    yield "group  rank  global  node        node rank  local rank"
    yield from _rank_table(config, launches)
    yield ""
    if not here:
        yield "sbatch script"
        yield from ("  " + line for line in sbatch_script(config, run).strip().splitlines())
        yield ""
    yield "steps" if here else "steps, each with a clean environment"
    for launch in launches[:3]:
        yield f"  {launch.id.unit}: {shlex.join(_command(config, run, launch, here))}"
    if len(launches) > 3:
        yield f"  and {len(launches) - 3} more, alike"
    if here:
        return
    yield ""
    for node in dict.fromkeys(node for launch in launches if launch.group is not None for node in launch.place.nodes):
        yield f"if {node} died   {_if_lost(config, state, node)}"


def _rank_table(config: Config, launches: list[Launch]) -> Iterator[str]:
    rows = []
    world = config.groups.nodes * config.groups.workers
    for launch in launches:
        if launch.group is not None:
            for r in ranks.expected(launch.place, config.groups.workers):
                place = f"{launch.group * world + r.rank:>6}  {r.node:<10}  {r.node_rank:>9}  {r.local_rank:>10}"
                rows.append(f"{launch.group:>5}  {r.rank:>4}  {place}")
    yield from rows[:LINES]
    if len(rows) > LINES:
        yield f"  and {len(rows) - LINES} more"


def _command(config: Config, run: RunDir, launch: Launch, here: bool) -> list[str]:
    log_dir = run.logs if launch.group is None else run.attempt(launch.id.unit, 0)
    if here:
        return program.command(config, launch, log_dir, local=True, url=None)
    return srun.command(config, launch, log_dir, "JOBID", None)


def _if_lost(config: Config, state: RunState, node: str) -> str:
    """What the controller would do, ten steps into the training, once it knows that a node is gone."""
    running = tuple(replace(u, phase=Phase.RUNNING, step=10) for u in state.groups)
    state = replace(state, groups=running, step=10, lighthouse=replace(state.lighthouse, phase=Phase.RUNNING))
    hit = [u for u in state.groups if u.place and node in u.place.nodes]
    events = [TaskFailed(u.id, Evidence(None, node, node_lost=True)) for u in hit]
    ends = [Ended(u.id, code=1) for u in hit]
    state, actions = decide(state, [*events, *ends], 100.0, config)
    if state.ending is not None:
        return f"the run would {'fail' if state.ending.outcome == 'failed' else 'end'}: {state.ending.reason}"
    moved = {a.group: a.place.nodes for a in actions if isinstance(a, Launch)}
    out = []
    for unit in hit:
        after = state.groups[unit.group or 0]
        if unit.group in moved:
            out.append(f"group {unit.group} moves to {', '.join(moved[unit.group])}")
        elif after.phase is Phase.PENDING:
            out.append(f"group {unit.group} waits for a node, the others go on (cluster.spare_nodes)")
        else:
            out.append(f"group {unit.group} is given up ({describe(after.exits[-1])}), the others go on")
    return "; ".join(out)


def _few(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) if len(nodes) <= 8 else f"{', '.join(nodes[:4])}, ... {nodes[-1]}"
