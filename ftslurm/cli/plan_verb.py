"""`ftslurm plan`: show what `run` would do, without submitting anything.

The decisions shown are the controller's own: the same functions make them, for nodes with made-up names.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ftslurm.cli import plan_standby
from ftslurm.cli.run_verb import settle, warn_of_exposed_secrets
from ftslurm.code import provenance, staging
from ftslurm.code.survey import survey
from ftslurm.config import compose, ladder, node_commands
from ftslurm.config.process_groups import nccl_variables, process_group
from ftslurm.config.schema import (
    Config,
    binds_itself,
    describe_job,
    fixed_standbys,
    nodes_needed,
    role_of,
)
from ftslurm.core.groups import ranks
from ftslurm.core.groups.standby import home, pick
from ftslurm.core.groups.verdict import describe
from ftslurm.core.jobs.supply import array, uses_jobs
from ftslurm.core.rules import begin, decide
from ftslurm.core.state.actions import CheckNodes, Launch
from ftslurm.core.state.events import (
    Ended,
    Event,
    Granted,
    JobsSeen,
    NodeFate,
    NodeResult,
    NodesChecked,
    NodesLeft,
    TaskFailed,
)
from ftslurm.core.state.model import Allocation, Evidence, Job, Phase
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.core.state.units import independent, pool_of
from ftslurm.guard import interfaces, node_check
from ftslurm.launchers import local, srun, step_command
from ftslurm.protocol.records import StepLaunched
from ftslurm.run import exclude_file
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files
from ftslurm.slurm import client
from ftslurm.submission import code_of_run, pilot_jobs, preflight
from ftslurm.submission.capabilities import cpus_per_node, gpus_per_node
from ftslurm.submission.submit import sbatch_script

TABLE_LINES = 40


class Standby(NamedTuple):
    """A warm standby: its nodes, and the groups that it can become (None: any group)."""

    name: str
    nodes: tuple[str, ...]
    serves: tuple[int, ...] | None


def main(words: list[str]) -> int:
    """Print the plan, with -m one plan for each combination."""
    warn_of_exposed_secrets(words)
    return compose.run_hydra(words, _print_plan)


def _print_plan(config: Config) -> int:
    settle(config, preview=True)
    owned_files.check_way(Path(config.run.dir or config.run.root), config.run.trust)
    if config.cluster.kind != "local" and config.cluster.controller == "job":
        pilot_jobs.try_out(config, RunDir(Path(config.run.dir or config.run.root)), lead=True)
    for line in plan(config, None if config.cluster.kind == "local" else client.kill_wait_s()):
        print(line)
    return 0


def plan(config: Config, kill_wait_s: float | None = None) -> Iterator[str]:
    """Describe the run, line by line.

    Args:
        kill_wait_s: Slurm's KillWait; None: not known.
    """
    run = RunDir(Path(config.run.dir or f"{config.run.root}/{config.run.name}-TIME-RANDOM"))
    here = config.cluster.kind == "local"
    jobs = pretend_jobs(config) if array(config) else ()
    names = tuple(f"node{i + 1}" for i in range(nodes_needed(config)))
    allocation = local.allocation(config) if here else Allocation("JOBID", () if jobs else names)
    events: list[Event] = [Granted(allocation), JobsSeen(jobs, asked=0.0)] if jobs else [Granted(allocation)]
    state, actions = decide(begin(config), events, 0.0, config)
    if config.health.preflight:
        state, more = decide(state, [_all_pass(one) for one in actions if isinstance(one, CheckNodes)], 0.0, config)
        actions += more
    launches = [action for action in actions if isinstance(action, Launch)]
    nodes = tuple(node for job in jobs for node in job.nodes) or allocation.nodes

    code = survey(config)
    code_of_run.check(config, code)
    yield f"job          {describe_job(config)}"
    yield f"code         {code.sentence()}" + (
        f" ({provenance.sentence(provenance.describe(code.root))})" if code.git else ""
    )
    if config.job.stage_python is not False:
        place = config.job.stage_python if isinstance(config.job.stage_python, str) else "SLURM_TMPDIR, TMPDIR or /tmp"
        yield f"python       {staging.environment(config).sentence()}; archived in {staging.archives(config)},"
        yield f"             unpacked once on each node, in {place} (job.stage_python)"
    yield f"run          {run.root}"
    if preflight.saves_nothing(config):
        yield f"saved        nothing: {preflight.NOTHING_SAVED}"
    yield from _allocation(config, run, jobs, nodes)
    yield from _checks(config)
    yield f"averaging    {process_group(config)} between groups (torchft.process_group={config.torchft.process_group})"
    yield f"healing      by {'HTTP, in 8 streams' if config.torchft.transport == 'http' else 'the process group'} " + (
        f"(torchft.transport={config.torchft.transport})"
    )
    yield f"bound        {_bound(config)}"
    if beside := plan_standby.sentence(config):
        yield f"standby      {beside}"
    yield ""
    yield from _rank_table(config, launches)
    yield ""
    standbys = _standbys(state, config)
    if standbys:
        yield from _standby_table(config, standbys)
        yield ""
    if not here:
        yield from _sbatch_scripts(config, run, jobs)
    yield "steps" if here else "steps, each with a clean environment"
    for launch in launches[:3]:
        yield f"  {launch.id.unit}: {shlex.join(_command(config, run, launch, here))}"
    if len(launches) > 3:
        yield f"  and {len(launches) - 3} more, alike"
    yield ""
    yield from _time_outs(config, kill_wait_s)
    yield ""
    if jobs:
        yield (
            "if the controller's node died   the groups wait at their next quorum until another process leads the run, "
            "and go on (ftslurm help controller)"
        )
    for node in nodes:
        yield f"if {node} died   {_if_lost(config, state, node)}"


def _checks(config: Config) -> Iterator[str]:
    if config.health.preflight:
        yield f"checks       {'; '.join(shlex.join(command) for command in node_commands.named(config))}"
        limit = f"{node_check.PREFLIGHT_S:g} s"
        yield f"             on each node before a group is placed there, within {limit} (health.preflight)"


def _all_pass(action: CheckNodes) -> NodesChecked:
    return NodesChecked(action.nodes, tuple(NodeResult(node, 0.0, "") for node in action.nodes))


def _allocation(config: Config, run: RunDir, jobs: tuple[Job, ...], nodes: tuple[str, ...]) -> Iterator[str]:
    here = config.cluster.kind == "local"
    if jobs:
        size = _count(config.groups.nodes, "node")
        yield "allocation   a Slurm job of one CPU for the controller, and one for each group and standby (its pilot):"
        names = _few(tuple(job.name for job in jobs))
        yield f"             {_count(len(jobs), 'job')} of {size}, submitted as needed; called here {names}"
    else:
        where = "this machine, under the names" if here else f"one Slurm job of {len(nodes)} nodes, called here"
        yield f"allocation   {where} {_few(nodes)}"
    if not here:
        spare = f", {config.cluster.spare_nodes} of them spare" if config.cluster.spare_nodes else ""
        size = f"{_count(cpus_per_node(config), 'CPU')} and {_count(gpus_per_node(config), 'GPU')}"
        yield f"             {size} on each{spare}"
        if said := exclude_file.read(config, run)[1]:
            yield f"left out     {said}"
        yield f"network      {_network(config.cluster.interface)}"
        yield from _topology(config)


def _topology(config: Config) -> Iterator[str]:
    """Yield how groups of several nodes keep together, and what Slurm is asked for that."""
    size, known = config.groups.nodes, client.leaves() if config.groups.nodes > 1 else {}
    leaves = tuple(dict.fromkeys(known.values()))
    if leaves:
        count = _count(len(leaves), "leaf switch or block", "leaf switches or blocks")
        yield f"topology     groups of {size} nodes stay within one of Slurm's {count}, if it has room: {_few(leaves)}"
    elif size > 1:
        yield f"topology     none that Slurm tells: groups of {size} nodes get neighbours in Slurm's order"


def _network(interface: list[str] | str | None) -> str:
    if interface is None:
        return "host names; Gloo and NCCL choose their interfaces (cluster.interface)"
    if interface == interfaces.AUTO:
        return "the interface of each node's name, or of its route to the controller (cluster.interface=auto)"
    names = interface if isinstance(interface, list) else [interface]
    return f"{' or '.join(names)} on each node, for all that its nodes say to one another (cluster.interface)"


def _bound(config: Config) -> str:
    """Say to which CPUs the workers will be bound: the node decides, ftslurm.worker.cpu_binding."""
    groups = config.groups
    if binds_itself(config):
        return "as cluster.srun says (--cpu-bind)"
    if groups.bind == "none":
        return "no worker: each may use all CPUs of the job on its node (groups.bind=none)"
    near = "its GPU's NUMA node" if groups.gpus else "NUMA nodes of its own, if the workers can be divided evenly"
    if groups.bind == "cores":
        near = "cores of its own" + (" near its GPU" if groups.gpus else "")
    return f"each worker to {near} (groups.bind={groups.bind})"


def _time_outs(config: Config, kill_wait_s: float | None) -> Iterator[str]:
    """Yield the time-outs, shortest first, and which of them contradict each other."""
    yield "time-outs, shortest first (ftslurm help timeouts)"
    for rung in ladder.rungs(config, kill_wait_s):
        yield f"  {rung.seconds:>6g} s  {rung.name}: {rung.ends}"
    for contradiction in ladder.contradictions(config, kill_wait_s):
        yield f"  note: {contradiction}"
    for name, value in nccl_variables(config).items():
        yield f"  {name}={value}"


def _sbatch_scripts(config: Config, run: RunDir, jobs: tuple[Job, ...]) -> Iterator[str]:
    """Yield the sbatch script of the controller, and in array mode one for each pool of pilots."""
    yield "sbatch script" + (" of the controller" if jobs else "")
    yield from ("  " + line for line in sbatch_script(config, run).strip().splitlines())
    yield ""
    for pool, count in Counter(job.pool for job in jobs).items():
        whom = "of the pilots" if pool == 0 else f"of the pilots for groups {config.cluster.ranges[pool - 1].groups}"
        yield f"sbatch script {whom}, submitted by the controller"
        yield from ("  " + line for line in pilot_jobs.sbatch_script(config, run, pool, count).strip().splitlines())
        yield ""


def pretend_jobs(config: Config) -> tuple[Job, ...]:
    """Invent the pilots of an array run: each runs on nodes of its own."""
    sizes = Counter(pool_of(group, config) for group in range(config.groups.count))
    sizes[0] += fixed_standbys(config)
    jobs: list[Job] = []
    for pool in sorted(pool for pool in sizes if sizes[pool]):
        array_name = "PILOTS" if pool == 0 else f"PILOTS{pool + 1}"
        for task in range(sizes[pool]):
            first, count = len(jobs) * config.groups.nodes + 1, config.groups.nodes
            nodes = tuple(f"node{n}" for n in range(first, first + count))
            name = f"{array_name}_{task}" if sizes[pool] > 1 else array_name
            jobs.append(Job(name, pool, "RUNNING", name, nodes))
    return tuple(jobs)


def _rank_table(config: Config, launches: list[Launch]) -> Iterator[str]:
    """Yield one line for each rank: its group, role, global rank and node."""
    roles, world = config.groups.roles, config.groups.nodes * config.groups.workers
    width = max(4, *(len(name) for name in roles)) if roles else 0
    role = f"{'role':<{width}}  " if roles else ""
    yield f"group  {role}rank  global  node        node rank  local rank"
    rows = []
    for launch in launches:
        if launch.group is not None:
            mine = role_of(roles, launch.group)
            called = "" if mine is None else f"{mine.name:<{width}}  "
            for r in ranks.expected(launch.place, config.groups.workers):
                place = f"{launch.group * world + r.rank:>6}  {r.node:<10}  {r.node_rank:>9}  {r.local_rank:>10}"
                rows.append(f"{launch.group:>5}  {called}{r.rank:>4}  {place}")
    yield from rows[:TABLE_LINES]
    if len(rows) > TABLE_LINES:
        yield f"  and {len(rows) - TABLE_LINES} more"


def _standbys(state: RunState, config: Config) -> list[Standby]:
    """Find for each warm standby the groups it can become: one that sits beside a group can become only that one."""
    out = []
    training = _training(state)
    for unit in training.standbys:
        if unit.place is None:
            continue
        alone = replace(training, table=UnitTable.of((training.lighthouse, *training.groups, unit)))
        nodes = set(unit.place.nodes)
        near = [g for g in alone.groups if g.place is not None and not nodes.isdisjoint(g.place.nodes)]
        far = next((g for g in alone.groups if g not in near), None)
        mine = tuple(g.group for g in near if g.group is not None and pick(alone, g, config))
        anybody = len(mine) == len(near) if far is None else pick(alone, far, config) is not None
        out.append(Standby(unit.name, unit.place.nodes, None if anybody else mine))
    return out


def _standby_table(config: Config, standbys: list[Standby]) -> Iterator[str]:
    for standby in standbys[:TABLE_LINES]:
        if standby.serves is None:
            whom = "kept warm for the group that fails next"
        elif len(standby.serves) == 1:
            whom = f"beside group {standby.serves[0]}, for that group only"
        else:
            whom = f"beside groups {', '.join(str(group) for group in standby.serves)}, for these only"
        yield f"{standby.name}  on {_few(standby.nodes)}, {whom}"
    if len(standbys) > TABLE_LINES:
        yield f"  and {len(standbys) - TABLE_LINES} more"
    beside = sum(standby.serves is not None for standby in standbys)
    if beside:
        enough = config.cluster.spare_nodes + beside * config.groups.nodes
        yield f"             cluster.spare_nodes={enough} would keep {'it' if beside == 1 else 'them'} for any group"


def _command(config: Config, run: RunDir, launch: Launch, here: bool) -> list[str]:
    log_dir = run.logs if launch.id.unit == LIGHTHOUSE else run.attempt(launch.id.unit, 0)
    if here:
        return step_command.command(config, launch, log_dir, local=True, url=None)
    if launch.id.unit == LIGHTHOUSE and array(config):
        return [*step_command.command(config, launch, log_dir, local=False, url=None), "--eof-ends"]
    return srun.command(config, run, launch, log_dir, launch.place.allocation or "JOBID", None)


def _if_lost(config: Config, state: RunState, node: str) -> str:
    """Describe what the controller would do if the node were lost after ten steps of training."""
    if config.cluster.kind != "local" and state.allocation is not None and node in state.allocation.nodes[:1]:
        return _without_controller(config)
    state = _training(state)
    hit = [u for u in state.units if u.place and node in u.place.nodes and not u.is_lighthouse]
    events = [TaskFailed(u.id, Evidence(None, node, node_lost=True)) for u in hit]
    ends = [Ended(u.id, code=1) for u in hit]
    own = state.allocation.nodes if state.allocation is not None else ()
    left = NodesLeft(tuple(n for n in own if n != node)) if own and config.cluster.kind != "local" else None
    state, actions = decide(state, [*events, *([left] if left else []), *ends], 1.0, config)
    state, more = decide(state, [NodeFate(node, down=True)], 1.0, config)  # Slurm's answer, for which groups wait
    actions += more
    if state.ending is not None:
        return f"the run would {'fail' if state.ending.outcome == 'failed' else 'end'}: {state.ending.reason}"
    launched = {action.group: action for action in actions if isinstance(action, StepLaunched)}
    out = []
    for unit in (unit for unit in hit if unit.group is not None):
        record, after = launched.get(unit.group), state.groups[unit.group or 0]
        where = _few(after.place.nodes) if after.place is not None else ""
        if record is not None and record.standby:
            name = record.standby.partition("/")[0]
            out.append(f"the warm standby {name} on {where} takes group {unit.group} over")
        elif record is not None:
            same = unit.place is not None and after.place == unit.place
            out.append(f"group {unit.group} {'is launched there again' if same else f'moves to {where}'}")
        elif after.phase is Phase.PENDING:
            waits = "waits for a node, the others go on (cluster.spare_nodes)"
            if uses_jobs(config):
                waits = "waits for a job that is asked for in its place (cluster.requeue), the others go on"
            out.append(f"group {unit.group} {waits}")
        else:
            out.append(f"group {unit.group} is given up ({describe(after.exits[-1])}), the others go on")
    for unit in (unit for unit in hit if unit.group is None):
        there = home(state, unit, config)
        where = f"is started elsewhere, on {_few(there.nodes)}" if there else "is not started again: no node is left"
        out.append(f"the standby {unit.name} {where}")
    return "; ".join(out) or "nothing happens: a spare"


def _without_controller(config: Config) -> str:
    job = " and the job" if config.cluster.controller == "job" else ""
    who = "the controller and the Lighthouse are there; without them"
    who = "the controller is there; without it" if independent(config) else who
    ends = f"{who} the workers end themselves{job} after {config.orphan_after_s:g} s (from health.lost_after_s)"
    saves = not independent(config) and not preflight.saves_nothing(config)
    if config.cluster.requeue and config.cluster.controller == "job" and saves:
        return (
            f"{ends}; if Slurm finds the node lost before (SlurmdTimeout), it requeues the job, and the run goes on "
            "from its newest checkpoint, else after ftslurm resume"
        )
    return f"the run would end: {ends}"


def _count(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or f'{noun}s'}"


def _training(state: RunState) -> RunState:
    """Return the state ten steps later: every group trains, every standby is warm."""
    running = tuple(replace(u, phase=Phase.RUNNING, current=replace(u.current, step=10)) for u in state.groups)
    warm = tuple(
        replace(u, phase=Phase.RUNNING, current=replace(u.current, hosts=u.place.nodes if u.place else ()))
        for u in state.standbys
    )
    lighthouse = state.lighthouse
    if lighthouse.phase is Phase.STARTING:
        lighthouse = replace(lighthouse, phase=Phase.RUNNING)
    table = UnitTable.of((lighthouse, *running, *warm))
    return replace(state, table=table, released=True, lineage=replace(state.lineage, step=10))


def _few(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) if len(nodes) <= 8 else f"{', '.join(nodes[:4])}, ... {nodes[-1]}"
