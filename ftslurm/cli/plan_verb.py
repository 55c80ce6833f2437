"""`ftslurm plan`: show what `run` would do, without submitting anything.

The decisions shown are the controller's own: the same functions make them, for nodes with made-up names.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ftslurm.api import submitting
from ftslurm.cli.run_verb import configs, each, tell
from ftslurm.code import provenance
from ftslurm.code.survey import survey
from ftslurm.config import ladder, site
from ftslurm.config.process_groups import nccl_variables
from ftslurm.config.schema import (
    Config,
    describe_job,
    fixed_standbys,
    nodes_needed,
    role_of,
)
from ftslurm.core.groups.verdict import describe
from ftslurm.core.jobs.supply import uses_jobs
from ftslurm.core.rules import begin, decide
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.events import (
    Ended,
    Event,
    Granted,
    JobsSeen,
    NodeFate,
    NodesLeft,
    TaskFailed,
)
from ftslurm.core.state.model import Allocation, Evidence, Job, Phase
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.core.state.units import pool_of
from ftslurm.launchers.job_command import JobRole
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.scheduler import Scheduler
from ftslurm.launchers.srun import Slurm
from ftslurm.launchers.step_command import is_standby
from ftslurm.protocol.records import StepLaunched
from ftslurm.run import exclude_file
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files
from ftslurm.slurm import client
from ftslurm.submission import code_of_run, pilot_jobs, preflight, submit
from ftslurm.submission.capabilities import cpus_per_node, gpus_per_node
from ftslurm.submission.submitit_adapter import sbatch_script
from ftslurm.words import few, plural

WITHOUT_CONTROLLER = (
    "if the controller's node died   the groups wait at their next quorum until another process leads the run, and go "
    "on (ftslurm help controller)"
)


def main(args: argparse.Namespace) -> int:
    """Print the plan, with -m one plan for each combination."""
    return each(configs(args), _print_plan)


def _print_plan(config: Config) -> int:
    tell(submitting.settle(config, preview=True))
    place = Path(config.run.dir or config.run.root)
    owned_files.check_way(place, config.run.trust)
    if not config.local and config.cluster.controller == "job":
        pilot_jobs.try_out(config, RunDir(place), lead=True)
    print(*plan(config, None if config.local else client.kill_wait_s()), sep="\n")
    return 0


def plan(config: Config, kill_wait_s: float | None = None) -> Iterator[str]:
    """Describe the run, line by line.

    Args:
        kill_wait_s: Slurm's KillWait; None: not known.
    """
    run = RunDir(Path(config.run.dir or f"{config.run.root}/{config.run.name}-TIME-RANDOM"))
    jobs = pretend_jobs(config) if config.job_per_group else ()
    names = tuple(f"node{i + 1}" for i in range(nodes_needed(config)))
    scheduler: Scheduler = ThisMachine(config, run) if config.local else Slurm(config, run)
    if not config.local:
        scheduler.job = "JOBID"
    allocation = scheduler.allocation() if config.local else Allocation("JOBID", () if jobs else names)
    events: list[Event] = [Granted(allocation), JobsSeen(jobs, asked=0.0)] if jobs else [Granted(allocation)]
    state, actions = decide(begin(config), events, 0.0, config)
    launches = [action for action in actions if isinstance(action, Launch)]
    nodes = tuple(node for job in jobs for node in job.nodes) or allocation.nodes

    warm = ((one.id.unit, f"on {few(one.place.nodes)}") for one in launches if is_standby(one))
    for name, text in (*_facts(config, run, jobs, nodes), *alike((*_groups(config, launches), *warm))):
        yield f"{name:<12} {text}"
    steps = alike((str(one.id.unit), shlex.join(_command(scheduler, run, one))) for one in launches)
    losses = alike((node, _if_lost(config, state, node)) for node in nodes)
    for block in (
        *(() if config.local else _sbatch_scripts(config, run, jobs)),
        [
            "steps" if config.local else "steps, each with a clean environment",
            *(f"  {unit}: {line}" for unit, line in steps),
        ],
        _time_outs(config, kill_wait_s),
        [*([WITHOUT_CONTROLLER] if jobs else []), *(f"if {node} died   {text}" for node, text in losses)],
    ):
        yield ""
        yield from block


def alike(told: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield what is told of each name. What is the same but for numbers is told once, with the first of them."""
    same: dict[str, list[tuple[str, str]]] = {}
    for name, text in told:
        same.setdefault(re.sub(r"\d+", "", text), []).append((name, text))
    for (name, text), *others in same.values():
        yield name, f"{text} (likewise {few([other for other, _ in others])})" if others else text


def _facts(config: Config, run: RunDir, jobs: tuple[Job, ...], nodes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield what is decided about the run as a whole, each fact with its name; the lines after its first have none."""
    code = survey(config)
    code_of_run.check(config, code)
    git = f" ({provenance.sentence(provenance.describe(code.root))})" if code.git else ""
    yield "job", describe_job(config)
    yield "code", code.sentence() + git
    yield "run", str(run.root)
    if said := site.read().said():
        yield "site", said
    if preflight.saves_nothing(config):
        yield "saved", f"nothing: {preflight.IF_ALL_FAIL}"
    yield from _allocation(config, run, jobs, nodes)


def _allocation(
    config: Config, run: RunDir, jobs: tuple[Job, ...], nodes: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    if jobs:
        size = plural(config.groups.nodes, "node")
        yield "allocation", "a Slurm job of one CPU for the controller, and one for each group and standby (its pilot):"
        names = few(tuple(job.name for job in jobs))
        yield "", f"{plural(len(jobs), 'job')} of {size}, submitted as needed; called here {names}"
    else:
        where = "this machine, under the names" if config.local else f"one Slurm job of {len(nodes)} nodes, called here"
        yield "allocation", f"{where} {few(nodes)}"
    if not config.local:
        spare = f", {config.cluster.spare_nodes} of them spare" if config.cluster.spare_nodes else ""
        yield "", f"{plural(cpus_per_node(config), 'CPU')} and {plural(gpus_per_node(config), 'GPU')} on each{spare}"
        if said := exclude_file.read(config, run)[1]:
            yield "left out", said


def _time_outs(config: Config, kill_wait_s: float | None) -> Iterator[str]:
    """Yield the time-outs, shortest first."""
    yield "time-outs, shortest first (ftslurm help causes)"
    for rung in ladder.rungs(config, kill_wait_s):
        yield f"  {rung.seconds:>6g} s  {rung.name}: {rung.ends}"
    for name, value in nccl_variables(config).items():
        yield f"  {name}={value}"


def _sbatch_scripts(config: Config, run: RunDir, jobs: tuple[Job, ...]) -> Iterator[list[str]]:
    """Yield the sbatch script of the controller, and in array mode one for each pool of pilots."""
    bad = exclude_file.read(config, run)[0]
    options = submit.without(bad, submit.job_options(config, run))
    script = sbatch_script(config, run, submit.batch_role(config), options)
    yield _script("sbatch script" + (" of the controller" if jobs else ""), script)
    for pool, count in Counter(job.pool for job in jobs).items():
        whom = "of the pilots" if pool == 0 else f"of the pilots for groups {config.cluster.ranges[pool - 1].groups}"
        script = sbatch_script(config, run, JobRole.PILOT, pilot_jobs.options(config, run, pool, bad), count)
        yield _script(f"sbatch script {whom}, submitted by the controller", script)


def _script(heading: str, text: str) -> list[str]:
    """Return a script without blank lines and comments."""
    return [heading, *(f"  {line}" for line in text.splitlines() if line.strip() and not line.startswith("# "))]


def pretend_jobs(config: Config) -> tuple[Job, ...]:
    """Invent the pilots of an array run: each runs on nodes of its own."""
    sizes = Counter(pool_of(group, config) for group in range(config.groups.count))
    sizes[0] += fixed_standbys(config)
    jobs: list[Job] = []
    for number, pool in enumerate(sorted(sizes.elements())):
        first, count = number * config.groups.nodes + 1, config.groups.nodes
        name = f"PILOT{number}"
        jobs.append(Job(name, pool, "RUNNING", name, tuple(f"node{n}" for n in range(first, first + count))))
    return tuple(jobs)


def _groups(config: Config, launches: list[Launch]) -> Iterator[tuple[str, str]]:
    """Yield for each group its role, its nodes, and its ranks, which are numbered node by node."""
    ranks = plural(config.groups.workers, "rank")
    size = f"{ranks} on each" if config.groups.nodes > 1 else ranks
    for launch in launches:
        if launch.group is not None:
            role = role_of(config.groups.roles, launch.group)
            what = "" if role is None else f"{role.name}, "
            yield f"group {launch.group}", f"{what}on {few(launch.place.nodes)}, {size}"


def _command(scheduler: Scheduler, run: RunDir, launch: Launch) -> list[str]:
    log_dir = run.logs if launch.id.unit == LIGHTHOUSE else run.attempt(launch.id.unit, 0)
    (first, *rest) = scheduler.start(launch, log_dir)[0].argv
    return ["srun" if first.endswith("/srun") else first, *rest]


def _if_lost(config: Config, state: RunState, node: str) -> str:
    """Describe what the controller would do if the node were lost after ten steps of training."""
    if not config.local and node in state.allocation.nodes[:1]:
        return _without_controller(config)
    state = _training(state)
    hit = [u for u in state.units if node in u.place.nodes and not u.is_lighthouse]
    events = [TaskFailed(u.id, Evidence(None, node, node_lost=True)) for u in hit]
    ends = [Ended(u.id, code=1) for u in hit]
    own = state.allocation.nodes
    left = NodesLeft(tuple(n for n in own if n != node)) if own and not config.local else None
    state, actions = decide(state, [*events, *([left] if left else []), *ends], 1.0, config)
    state, more = decide(state, [NodeFate(node, down=True)], 1.0, config)  # Slurm's answer, for which groups wait
    actions += more
    if state.ending is not None:
        return f"the run would {'fail' if state.ending.outcome == 'failed' else 'end'}: {state.ending.reason}"
    launched = {action.group: action for action in actions if isinstance(action, StepLaunched)}
    out = []
    for unit in (unit for unit in hit if unit.group is not None):
        record, after = launched.get(unit.group), state.groups[unit.group or 0]
        where = few(after.place.nodes)
        if record is not None and record.standby:
            name = record.standby.partition("/")[0]
            out.append(f"the warm standby {name} on {where} takes group {unit.group} over")
        elif record is not None:
            same = after.place == unit.place
            out.append(f"group {unit.group} {'is launched there again' if same else f'moves to {where}'}")
        elif after.phase is Phase.PENDING:
            waits = "waits for a node, the others go on (cluster.spare_nodes)"
            if uses_jobs(config):
                waits = "waits for a job that is asked for in its place (cluster.requeue), the others go on"
            out.append(f"group {unit.group} {waits}")
        else:
            out.append(f"group {unit.group} is given up ({describe(after.exits[-1])}), the others go on")
    return "; ".join(out) or "no group is hit"


def _without_controller(config: Config) -> str:
    who = "the controller is" if config.independent else "the controller and the Lighthouse are"
    return (
        f"{who} there: all ends after {config.orphan_after_s:g} s (from health.lost_after_s). It goes on from its "
        "newest checkpoint after ftslurm resume, or if Slurm finds the node lost before and requeues the job"
    )


def _training(state: RunState) -> RunState:
    """Return the state ten steps later: every group trains, every standby is warm."""
    running = tuple(replace(u, phase=Phase.RUNNING, current=replace(u.current, step=10)) for u in state.groups)
    warm = tuple(
        replace(u, phase=Phase.RUNNING, current=replace(u.current, hosts=u.place.nodes)) for u in state.standbys
    )
    lighthouse = state.lighthouse
    if lighthouse.phase is Phase.STARTING:
        lighthouse = replace(lighthouse, phase=Phase.RUNNING)
    table = UnitTable.of((lighthouse, *running, *warm))
    return replace(state, table=table, released=True, lineage=replace(state.lineage, step=10))
