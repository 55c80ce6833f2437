"""`ftslurm run`, also the default verb: compose the configuration, check it, submit the run and follow it."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from ftslurm.api import submitting
from ftslurm.cli.interrupts import Interrupts
from ftslurm.code import own_copy
from ftslurm.config import compose
from ftslurm.config.schema import Config, nodes_needed
from ftslurm.controller.signals import SIGNALS
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers.job_command import JobRole, job_command
from ftslurm.monitor.closed_output import say
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.submission import preflight, submit

# The imports inside functions are of what most runs do not need, or only once they are submitted: a start is faster.


def main(args: argparse.Namespace) -> int:
    """Start a run, or with -m one run for each combination. Return the highest exit code."""
    runs = configs(args)
    if args.multirun and runs:  # `list` and `stop` know them by this name
        name = f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        print(f"sweep {name}; its runs: ftslurm list --sweep {name}", file=sys.stderr)
        for config in runs:
            config.internal.sweep = name
    return each(runs, start)


def configs(args: argparse.Namespace) -> list[Config]:
    """Return the checked configuration of each run. With --cfg, print them and return none."""
    words, folder = args.overrides, args.config_dir
    runs = compose.sweep(words, config_dir=folder) if args.multirun else [compose.compose(words, config_dir=folder)]
    if args.cfg is None:
        return list(map(compose.to_config, runs))
    print(*map(compose.dump, runs), sep="\n")
    return []


def each(runs: list[Config], task: Callable[[Config], int]) -> int:
    """Do the task with each. Return the highest exit code; after Ctrl-C (130) no further task is done."""
    codes = [0]
    for config in runs:
        codes.append(task(config))
        if codes[-1] == 130:
            break
    return max(codes)


def tell(notes: list[str]) -> None:
    """Print notes about a run that is to be started."""
    for note in notes:
        say(f"ftslurm: {note}", sys.stderr)


def start(
    config: Config,
    create: Callable[[Config], RunDir] = submit.create,
    judge: bool = True,
) -> int:
    """Submit one run and follow it. Return its exit code.

    Args:
        create: creates the run directory.
        judge: as for ftslurm.api.submitting.settle.

    Raises:
        FtslurmError: it cannot be started.
    """
    here, array = config.cluster.controller == "here", None
    if here:
        from ftslurm.submission import array_task

        array = array_task.array_of(config, os.environ)
        config.internal.pilots = array
    tell(submitting.settle(config, judge=judge))
    if array:
        array_task.check(config, os.environ)
        return _become(config, array_task.join(config), JobRole.TASK)
    if here:
        return _control_here(config, create)
    with Interrupts() as interrupts:
        return _launch_and_follow(config, create, interrupts)


def _launch_and_follow(config: Config, create: Callable[[Config], RunDir], interrupts: Interrupts) -> int:
    """Start the controller, and follow the run if the user wants that. Return the exit code."""
    if config.local:  # sbatch may take long
        interrupts.hold()
    run = submitting.launch(config, create)
    tell(preflight.notes(config))
    say(f"run {run.root}" + ("" if config.local else f", Slurm job {run.job()}"))
    follow = config.follow
    if follow is None:
        follow = config.local or (sys.stdout.isatty() and config.internal.sweep is None)
    if not follow:
        say(f"follow it with: ftslurm status -w {run.root}")
        return 0
    interrupts.hold()  # interrupted in the exec() of a dataclass, Python would end by the signal, not with 130
    from ftslurm.cli import following  # imports rich, which the long-lived processes above do not need

    return following.follow_run(config, run, interrupts)


def _control_here(config: Config, create: Callable[[Config], RunDir]) -> int:
    """Keep a controller running below this process, in its allocation. A requeued batch job continues its run."""
    from ftslurm.run import configuration, leadership
    from ftslurm.slurm import commands
    from ftslurm.submission import requeue

    steps = config.cluster.kind == "slurm"
    run = requeue.of_this_job(config, os.environ) if steps else None
    begun = " goes on" if run is not None else ""
    if run is not None:
        if (outcome := leadership.final(run)) is not None:
            print(f"run {run.root} is over ({outcome}): it ended before this job was started again")
            return int(outcome != "succeeded")
        config = configuration.of_run(run)
    if steps:
        _check_allocation(config)
    if run is None:
        run = create(config)
        tell(preflight.notes(config))
    if steps and commands.is_batch(os.environ):
        replace_text(run.job_id, os.environ["SLURM_JOB_ID"])
    say(f"run {run.root}{begun}")
    return _become(config, run, submit.batch_role(config))


def _become(config: Config, run: RunDir, role: JobRole) -> int:
    """Go on as a process of the run, with its copy of ftslurm. Return its exit code: a sweep has further runs."""
    command = job_command(run, role)
    if config.internal.sweep is None:
        own_copy.replace(command)
    process = subprocess.Popen(command)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda seen, _: None if seen == signal.SIGINT else process.send_signal(seen))
    return process.wait()  # a terminal sends Ctrl-C to both


def _check_allocation(config: Config) -> None:
    """Refuse an allocation that has fewer nodes than the groups need."""
    from ftslurm.launchers import srun
    from ftslurm.submission import capabilities

    allocation = srun.allocation(config, os.environ)
    need, have = nodes_needed(config) - config.cluster.spare_nodes, len(allocation.nodes)
    if have < need:
        groups = config.groups
        raise EnvironmentProblem(
            f"{groups.count} groups of {groups.nodes} nodes, groups.per_node={groups.per_node}, need {need} nodes, "
            f"allocation {allocation.name} has {have}: ask for more (sbatch --nodes={need}), "
            f"{capabilities.SHARE}, or lower groups.count"
        )
