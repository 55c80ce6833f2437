"""Creates the run directory and starts the controller, in a batch job or as a process on this machine."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ftslurm.code import own_copy
from ftslurm.config import compose, slurm_options
from ftslurm.config.schema import (
    CONTROLLER,
    OWN_OPTIONS,
    Config,
    nodes_needed,
    sbatch_options,
)
from ftslurm.errors import EnvironmentProblem, FtslurmError
from ftslurm.launchers.job_command import JobRole
from ftslurm.protocol.records import CONTROLLER_POOL
from ftslurm.run import exclude_file
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.security import owned_files, programs, sharing
from ftslurm.slurm import client, commands
from ftslurm.submission import code_of_run, setup_lines, submitit_adapter
from ftslurm.submission.capabilities import UNKNOWN_TO_SLURM, cpus_per_node, gres_per_node

# How Slurm calls what such an option asks for, if not by the option's name.
_CALLED = {
    "constraint": "feature",
    "nodelist": "node name",
    "exclude": "node name",
    "gpus-per-node": "(gres)",
    "nodes": "node count",
}
_SET_BY = {
    **{name: f"cluster.{name}" for name in OWN_OPTIONS},
    **{
        name: f"cluster.sbatch.{name}"
        for name in ("qos", "constraint", "exclude", "nodelist", "reservation", "segment")
    },
    "mem": "groups.mem",
    "gpus-per-node": "groups.gpus x groups.per_node",
    "nodes": "groups.count / groups.per_node x groups.nodes + cluster.spare_nodes",
    "cpus-per-task": "groups.workers x groups.cpus_per_worker x groups.per_node",
}


NOT_AVAILABLE = "Requested node configuration is not available"  # too large, or (sbatch --test-only) all are down
_OF_A_NODE = re.compile(
    "gres|gpus.*|tres.*|mem.*|cpus-per-.*|exclusive|ntasks.*|cores.*|sockets.*|threads.*|spread-job|switches|segment"
)


def create(config: Config, give_code: code_of_run.GiveCode = code_of_run.take, place: Path | None = None) -> RunDir:
    """Create the run directory and write the resolved configuration and the code into it.

    Args:
        give_code: puts the code there, instead of taking it from where it lies.
        place: where it is made first; the caller renames it.

    Raises:
        EnvironmentProblem: the directory cannot be created, or exists.
        ConfigError: run.share names no group of this user.
        Distrusted: other users could replace it.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    root = Path(config.run.dir or f"{config.run.root}/{config.run.name}-{stamp}-{secrets.token_hex(2)}")
    run = RunDir(place or root)
    owned_files.check_way(run.root, config.run.trust)
    group, steer = (None, False) if config.run.share is None else sharing.parse(config.run.share)
    try:
        run.create(group, steer)
        config.run.dir = str(root)
        replace_text(run.config, compose.dump(config))
        own_copy.write(run.package, RunDir(root).package)
    except FileExistsError as error:
        raise EnvironmentProblem(f"run.dir={root} exists already: every run needs a directory of its own") from error
    except OSError as error:
        raise EnvironmentProblem(
            f"the run directory {root} cannot be created: {error.strerror}; choose a folder that you may write and "
            f"all nodes share, with run.root=DIR"
        ) from error
    unless_refused(run, lambda: give_code(config, run))
    return run


def submit(config: Config, run: RunDir, after: str | None = None) -> None:
    """Start the controller, in a batch job or on this machine. Store the job's id.

    Args:
        after: a job of this run that must end first: two controllers never overlap.

    Raises:
        EnvironmentProblem: sbatch refused the job; its message is passed on.
    """
    if config.local:
        job = _start_here(config, run)
    else:
        options = job_options(config, run)
        if after is not None:
            options = undelayed(options) | {"dependency": f"afterany:{after}"}
        try:
            job, _ = submit_batch(config, run, batch_role(config), options)
        except submitit_adapter.SbatchRefused as error:
            if after is None:  # nothing was submitted: leave no run directory behind
                shutil.rmtree(run.root, ignore_errors=True)
            raise EnvironmentProblem(f"sbatch refused the job: {explained(error, options)}") from error
        if config.job_per_group:
            run.remember([job], CONTROLLER_POOL)
    replace_text(run.job_id, job)


def undelayed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job that is not the first of its run: nothing holds it back."""
    return {name: value for name, value in options.items() if name not in slurm_options.ONCE}


def without(nodes: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job that does not get these nodes either."""
    excluded = ",".join(map(str, filter(None, (options.get("exclude"), *nodes))))
    return {**options, **({"exclude": excluded} if excluded else {})}


def submit_batch(
    config: Config, run: RunDir, role: JobRole, options: Mapping[str, Any], tasks: int = 1
) -> tuple[str, list[str]]:
    """Submit a job, or an array, without the nodes of cluster.exclude_file; where Slurm has too few others, the oldest
    give way. Return its id, and the nodes of the file that it does not get.

    Raises:
        SbatchRefused: sbatch has refused it without them, too.
    """
    nodes = [*exclude_file.read(config, run)[0]]
    while True:
        script = submitit_adapter.sbatch_script(config, run, role, without(nodes, options), tasks)
        try:
            return submitit_adapter.submit_script(run.submitit, script), nodes
        except submitit_adapter.SbatchRefused as error:
            if not nodes or not any(words in str(error) for words in (NOT_AVAILABLE, "Invalid node name")):
                raise  # the latter: cluster.sbatch.nodelist names one
            nodes.pop()


def _start_here(config: Config, run: RunDir) -> str:
    """Start the controller as a process of this machine; return its process id.

    It ignores Ctrl-C and the end of the terminal, which this process handles. They are held up until it has had time
    for that: it inherits that, and the controller unblocks them (ftslurm.controller.signals). Who reads the output of
    this process does not wait for the run.
    """
    output = f"{shlex.quote(str(run.submitit))}/$$_0_log.out"  # as submitit names the output of a job
    lines = ["trap '' INT HUP", f"exec </dev/null >>{output} 2>&1 || exit", *setup_lines.script(config.cluster.setup)]
    shell = "\n".join([*lines, submitit_adapter.batch_command(run, JobRole.CONTROLLER)])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        return str(subprocess.Popen([setup_lines.SHELL, "-c", shell], env=programs.of_a_new_run(os.environ)).pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unless_refused(run: RunDir, ask: Callable[[], None]) -> None:
    """Call `ask` before anything is submitted. If it raises, remove the run directory."""
    try:
        ask()
    except FtslurmError:
        shutil.rmtree(run.root, ignore_errors=True)
        raise


def explained(refusal: object, options: Mapping[str, Any]) -> str:
    """Return sbatch's words with the settings that they may mean, and with what the partition offers."""
    options = {key: value for key, value in options.items() if (key, value) != ("cpus-per-task", 1)}
    if "unrecognized option" in str(refusal):
        return f"{refusal} (cluster.sbatch)"
    words, asked = str(refusal).lower(), [option for option in _SET_BY if option in options]
    meant = [option for option in asked if _CALLED.get(option, option) in words] or asked
    named = [f"{_SET_BY[option]}={options[option]}" for option in meant]
    if "accounting/qos policy" in words:  # MaxSubmitJobs, and other limits of an association or QOS
        named.append("ftslurm doctor shows the limits of your account; with groups.min fewer groups train meanwhile")
    if "partition" in words and "partition" not in options:
        named.append("cluster.partition names one")
    partition, rows = options.get("partition", "*"), client.call(commands.OFFERS).out.splitlines()
    mine = [row for row in rows if partition in row.partition(" ")[0]] or rows  # sinfo marks the default one with *
    if "gpus-per-node" in meant and not re.search(r"\bgpu:(\S+:)?[1-9]", " ".join(mine)):
        named.append(UNKNOWN_TO_SLURM)
    return "; ".join([str(refusal), *named, *mine[:4]])


def job_options(config: Config, run: RunDir, group: bool = False, pool: int = 0) -> dict[str, Any]:
    """Return sbatch's options for the controller's job, or for a pilot's (`group`) of a pool.

    --no-kill keeps the job when a node is lost. `B:` sends Slurm's warning before the time limit to the controller
    alone; the signal would kill the training scripts.
    """
    cluster, groups = config.cluster, config.groups
    alone = config.job_per_group and not group  # the controller needs hardly any resources
    options: dict[str, Any] = {
        "nodes": 1 if alone else groups.nodes if group else nodes_needed(config),
        "ntasks-per-node": 1,
        "cpus-per-task": 1 if alone else cpus_per_node(config),
        "no-kill": not group,
        "requeue" if cluster.requeue else "no-requeue": True,
        "signal": f"B:USR2@{cluster.signal_s}",
        "comment": run.mark() + (f":{pool}" if group else f":{CONTROLLER_POOL}" if alone else ""),
    }
    if gres_per_node(config) and not alone:
        options["gpus-per-node"] = gres_per_node(config)
    if alone:
        options["mem"] = "1G"
    elif groups.mem is not None:
        number, unit = groups.mem.rstrip("KMGTkmgt"), groups.mem.lstrip("0123456789")
        options["mem"] = f"{int(number) * groups.per_node}{unit}"
    more = sbatch_options(cluster)
    if alone:  # what groups need of a node is not for the controller
        more = {key: value for key, value in more.items() if not _OF_A_NODE.fullmatch(key)}
        for place in cluster.ranges:
            if place.groups == CONTROLLER:
                more |= sbatch_options(place)
    if pool:
        more |= sbatch_options(cluster.ranges[pool - 1])
    if group and str(more.get("segment")).isdecimal():
        more["segment"] = min(int(more["segment"]), groups.nodes)
    if more.get("comment"):  # it may save the job from a site's own reaper
        more["comment"] = f"{more['comment']} {options['comment']}"
    return _with_options(options, more)


def _with_options(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of sbatch with more of them; False takes one back, as in cluster.sbatch.gpus-per-node=false."""
    gpus = any(key == "gres" or key.startswith("gpus") for key in more)  # with ours an error since Slurm 26.05
    ours = {key: value for key, value in options.items() if key != "gpus-per-node" or not gpus}
    return {key: value for key, value in {**ours, **more}.items() if value is not None and value is not False}


def batch_role(config: Config) -> JobRole:
    """Return the role of the batch process that is to lead a run on Slurm."""
    return JobRole.CONTROLLER if config.job_per_group else JobRole.STEPS
