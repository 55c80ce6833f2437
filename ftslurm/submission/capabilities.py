"""Determines the kind of cluster and refuses a run that it cannot hold, once, before anything is submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ftslurm.checkpoint import object_store
from ftslurm.config.process_groups import BABY_NCCL, NCCL
from ftslurm.config.schema import Config, fixed_standbys, most_groups, nodes_needed
from ftslurm.config.store_url import is_url
from ftslurm.errors import ConfigError, EnvironmentProblem
from ftslurm.launchers import container
from ftslurm.slurm import client, commands, sbatch_variables
from ftslurm.slurm.parse import Partition, partition_names

ASK_S = 10.0  # for srun --help
OPTIONS = ("partition", "account", "qos", "time", "constraint", "exclude", "nodelist", "reservation")  # of sbatch
SLURM_ONLY = (*OPTIONS, "switches", "segment", "sbatch", "srun", "container_image")


def resolve(config: Config, preview: bool = False) -> list[str]:
    """Set what the configuration leaves open (cluster.kind, groups.gpus, SBATCH_*), in place. Return lines about it.

    Args:
        preview: nothing will be submitted, so cluster=slurm is accepted without Slurm.

    Raises:
        ConfigError: drills that a local run cannot do, or a variable of sbatch's that cannot be.
        EnvironmentProblem: cluster=slurm without Slurm, a Slurm that does not answer, more than the partition has, or a
            CUDA context without GPUs.
    """
    notes, cluster, here = list[str](), config.cluster, config.cluster.controller == "here"
    partitions, why_not = ([], "") if cluster.kind == "local" else client.partitions()
    if cluster.kind == "auto" and cluster.mode == "array":
        cluster.kind = "slurm"  # an array needs it
    if not partitions and (not preview if cluster.kind == "slurm" else cluster.kind == "auto" and client.installed()):
        raise EnvironmentProblem(
            f"cluster={cluster.kind}, but Slurm does not answer: {why_not}; try again (set SLURM_CONF, or load the "
            f"site's module, if its configuration is elsewhere), or cluster=local if you mean this machine"
        )
    if cluster.kind == "auto":
        asked = [f"cluster.{key}" for key in SLURM_ONLY if getattr(cluster, key)]
        asked += ["cluster.interface"] if cluster.interface not in ("auto", None) else []
        if not partitions and asked:
            raise EnvironmentProblem(f"{', '.join(asked)} asks for Slurm, but {why_not}; cluster=local would ignore it")
        cluster.kind = "slurm" if partitions else "local"
        doing = "running in this allocation" if here else "run would submit to it" if preview else "submitting to it"
        notes += [f"Slurm answers: {doing}" if partitions else f"{why_not}: running on this machine (cluster=local)"]
    if cluster.kind == "slurm":
        for key in ("partition", "account", "qos") if here else ():  # for jobs in its place
            setattr(cluster, key, getattr(cluster, key) or os.environ.get(f"SLURM_JOB_{key.upper()}"))
        notes += sbatch_variables.take(config, os.environ)
    if cluster.kind == "slurm" and here and (cluster.mode == "steps" or cluster.pilots):
        _share_gpus_of_allocation(config, os.environ)
    elif cluster.kind == "slurm" and partitions:
        _fit(config, partitions, cluster.partition)
        for one in cluster.ranges:
            if one.partition is not None:
                _fit(config, partitions, one.partition, f"cluster.ranges: groups={one.groups}, partition")
    elif cluster.kind == "slurm":
        config.groups.gpus = config.groups.gpus or 0
        return [*notes, f"{why_not}: cannot check whether the cluster has these nodes and GPUs"]
    else:
        _check_drills(config)
        notes += filter(None, [_share_local_gpus(config)])
    _check_standby(config)
    _check_process_group(config)
    _check_container(config)
    if is_url(config.checkpoint.dir or ""):
        _check_store(config.checkpoint.dir or "")
    _check_segments(config)
    return notes


def _check_store(url: str) -> None:
    """Refuse an object store for which a package is missing."""
    try:
        object_store.open_url(url)
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"checkpoint.dir: {error} (for s3:// pip install 'ftslurm[s3]')") from error


def _check_container(config: Config) -> None:
    """Refuse a container where srun has no option for one, or whose mounts cannot be written as pyxis reads them."""
    if config.cluster.container_image is None:
        return
    answer = client.call(commands.srun_options(), ASK_S)
    if answer.ok and container.OPTION not in answer.text:
        raise EnvironmentProblem(
            f"cluster.container_image={config.cluster.container_image}, but this Slurm has no pyxis: srun knows no "
            f"{container.OPTION}. Ask its admin, or start a container with job.python=[apptainer,exec,img.sif,python]"
        )
    run = Path(config.run.dir or config.run.root)
    for path in (run, *container.folders(config), container.package()):
        if re.search(r"[\s,:]", str(path)):
            raise ConfigError(
                f"cluster.container_image: {path} has to be mounted into the container, and pyxis takes no spaces, "
                f"commas or colons in such a path; rename the folder, or start the run in another one"
            )


def _check_drills(config: Config) -> None:
    """Refuse drills that need a Slurm step, for a run on this machine."""
    for key, kinds in (
        ("faults.plan", [fault.kind for fault in config.faults.plan]),
        ("faults.kinds", config.faults.kinds if config.faults.mean_s else []),
    ):
        if "cancel" in kinds:
            raise ConfigError(f"{key}: cancel is scancel of a Slurm step, and this run is local (cluster.kind)")


def _check_segments(config: Config) -> None:
    if config.cluster.segment is None or config.cluster.kind == "local":
        return
    if "unrecognized option" in client.call(commands.knows_segments()).err:
        raise EnvironmentProblem(
            f"cluster.segment={config.cluster.segment}: the sbatch here knows no segments (Slurm does since 24.05, "
            f"with topology/block); leave it out, or ask for leaf switches with cluster.switches"
        )


def _check_standby(config: Config) -> None:
    """Refuse standbys with a CUDA context for groups without GPUs. Call it when groups.gpus is set."""
    if fixed_standbys(config) and config.standby.cuda and not config.groups.gpus:
        raise EnvironmentProblem(
            "standby.cuda=true creates a CUDA context in each standby, but the groups have no GPU "
            "(groups.gpus=0, or none was found): leave it out, or give the groups GPUs"
        )


def _check_process_group(config: Config) -> None:
    """Refuse NCCL between groups without GPUs. Call it when groups.gpus is set."""
    kind = config.torchft.process_group
    if kind in (NCCL, BABY_NCCL) and not config.groups.gpus:
        raise EnvironmentProblem(
            f"torchft.process_group={kind} needs GPUs, but the groups have none (groups.gpus=0, or none was found): "
            f"leave it out (auto takes Gloo then), or give the groups GPUs"
        )


def _fit(config: Config, rows: Sequence[Partition], wanted: str | None, key: str = "cluster.partition") -> None:
    """Set groups.gpus, and refuse what the partition never has; `key` is the setting that names the partition."""
    mine = [row for row in rows if (row.name in wanted.split(",") if wanted else row.default)]
    if not mine:
        which = f"{key}={wanted}: there is no such partition" if wanted else "there is no default partition"
        raise EnvironmentProblem(f"{which}; there are: {partition_names(rows)}")
    name = wanted or mine[0].name
    if not any(row.up for row in mine):
        raise EnvironmentProblem(f"partition {name} is not up: choose another (cluster.partition) or ask its admin")
    groups = config.groups
    if groups.gpus is None:
        groups.gpus = groups.workers if any(row.gpus >= groups.workers * groups.per_node for row in mine) else 0
    gpus, cpus = gpus_per_node(config), cpus_per_node(config)
    if gpus > max(row.gpus for row in mine):
        raise EnvironmentProblem(
            f"groups.gpus={groups.gpus} x groups.per_node={groups.per_node} asks for {gpus} GPUs on a node, the nodes "
            f"of partition {name} have at most {max(row.gpus for row in mine)}: lower one of them "
            f"(groups.gpus=0: no GPUs)"
        )
    if cpus > max(row.cpus for row in mine):
        raise EnvironmentProblem(
            f"groups.workers={groups.workers} x groups.cpus_per_worker={groups.cpus_per_worker} x groups.per_node="
            f"{groups.per_node} asks for {cpus} CPUs on a node, the nodes of partition {name} have at most "
            f"{max(row.cpus for row in mine)}: lower one of them"
        )
    fitting = _fitting(config, mine)
    if config.cluster.mode == "array":
        if groups.nodes > fitting:
            raise EnvironmentProblem(
                f"groups.nodes={groups.nodes}: a group needs so many nodes with {cpus} CPUs and {gpus} GPUs each; "
                f"partition {name} has {fitting}: ask for fewer, or choose another partition"
            )
        return
    nodes = nodes_needed(config)
    if nodes > fitting:
        raise EnvironmentProblem(
            f"{groups.count} groups x {groups.nodes} nodes (groups.count, groups.nodes, groups.per_node="
            f"{groups.per_node}) and {config.cluster.spare_nodes} spare ones (cluster.spare_nodes) need {nodes} nodes "
            f"with {cpus} CPUs and {gpus} GPUs each; partition {name} has {fitting}: lower groups.count"
            f"{sharing(config, lambda shared: _fitting(shared, mine))}, or choose another partition"
        )


def _fitting(config: Config, rows: Sequence[Partition]) -> int:
    """Return how many nodes can hold groups.per_node groups each."""
    gpus, cpus = gpus_per_node(config), cpus_per_node(config)
    return sum(row.nodes for row in rows if row.gpus >= gpus and row.cpus >= cpus)


def sharing(config: Config, fitting: Callable[[Config], int]) -> str:
    """Name the least groups.per_node with which all groups fit, as one more thing to change; "" if none helps.

    Args:
        fitting: returns how many nodes can hold groups.per_node groups each.
    """
    for shares in range(config.groups.per_node + 1, config.groups.count + 1):
        shared = replace(config, groups=replace(config.groups, per_node=shares))
        if nodes_needed(shared) <= fitting(shared):
            return f", let more groups share a node (groups.per_node={shares})"
    return ""


def gpus_of_allocation(environ: Mapping[str, str]) -> int | None:
    """Return the GPUs on each node of the allocation that this process runs in; None: Slurm has not said."""
    said = environ.get("SLURM_GPUS_ON_NODE", environ.get("SLURM_GPUS_PER_NODE"))  # set by slurmd, set by salloc
    return None if said is None else int(said.split(":")[-1])


def _share_gpus_of_allocation(config: Config, environ: Mapping[str, str]) -> None:
    """Set groups.gpus from the allocation that this process runs in, whatever its partition."""
    groups = config.groups
    have = gpus_of_allocation(environ)
    if groups.gpus is None:
        groups.gpus = groups.workers if (have or 0) >= groups.workers * groups.per_node else 0
    if have is not None and gpus_per_node(config) > have:
        raise EnvironmentProblem(
            f"groups.gpus={groups.gpus} x groups.per_node={groups.per_node} asks for {gpus_per_node(config)} GPUs on a "
            f"node, the allocation has {have}: ask for more (sbatch --gpus-per-node), or lower one of them"
        )


def gpus_per_node(config: Config) -> int:
    """Return the GPUs that each node of the allocation must have."""
    return (config.groups.gpus or 0) * config.groups.per_node


def cpus_per_node(config: Config) -> int:
    """Return the CPUs that each node of the allocation must have. Controller and Lighthouse need next to none."""
    groups = config.groups
    return groups.workers * groups.cpus_per_worker * groups.per_node


def _share_local_gpus(config: Config) -> str:
    """Set groups.gpus from the GPUs of this machine. Return a line about it, or ""."""
    groups = config.groups
    from ftslurm.launchers.local import visible_gpus

    have = len(visible_gpus(os.environ))
    pairs = most_groups(config) * groups.nodes
    if groups.gpus is None:
        wanted = pairs * groups.workers
        groups.gpus = groups.workers if have >= wanted else 0
        return "" if have == 0 or groups.gpus else f"{wanted} workers, {have} GPUs on this machine: training on CPUs"
    if groups.gpus * pairs > have:
        raise EnvironmentProblem(
            f"groups.gpus={groups.gpus} for {pairs} groups x nodes asks for {groups.gpus * pairs} GPUs, this machine "
            f"shows {have}: lower groups.gpus (0: none) or groups.count"
        )
    return ""
