"""Determines the kind of cluster, and refuses a run that it cannot hold where sbatch would not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

from ftslurm.checkpoint.places import Bucket
from ftslurm.config.process_groups import BABY_NCCL, NATIVE, NCCL
from ftslurm.config.schema import (
    OWN_OPTIONS,
    Config,
    Place,
    most_groups,
    sbatch_options,
    set_sbatch_option,
    slurm_knows_gpus,
)
from ftslurm.config.store_url import is_url
from ftslurm.errors import ConfigError, EnvironmentProblem
from ftslurm.launchers import container
from ftslurm.slurm import client, commands, sbatch_variables
from ftslurm.slurm.parse import UNKNOWN, Partition, partition_names, read_gpus
from ftslurm.worker import patch_fit

ASK_S = 10.0  # for srun --help
SHARE = "let more groups share a node (groups.per_node)"
# Slurm's notations of less than a day: minutes, minutes:seconds, hours:minutes:seconds. 0 is no limit.
_TIME = re.compile(r"(?:(\d+):(?=\d+:))?(\d+)(?::(\d+))?")
UNKNOWN_TO_SLURM = "cluster.sbatch.gpus-per-node=false: the nodes have GPUs that Slurm does not know"


def resolve(config: Config, preview: bool = False) -> list[str]:
    """Set what the configuration leaves open (cluster.kind, groups.gpus, SBATCH_*), in place. Return lines about it.

    Args:
        preview: nothing will be submitted, so cluster=slurm is accepted without Slurm.

    Raises:
        ConfigError: drills that a local run cannot do, or a variable of sbatch's that cannot be.
        EnvironmentProblem: cluster=slurm without Slurm, a Slurm that does not answer, more GPUs than there are here.
    """
    partitions, why_not, notes = _settle_kind(config, preview)
    cluster, here = config.cluster, config.cluster.controller == "here"
    if not config.local:
        for key in ("partition", "account", "qos") if here else ():  # for jobs in its place
            if (told := os.environ.get(f"SLURM_JOB_{key.upper()}")) and not sbatch_options(cluster).get(key):
                set_sbatch_option(cluster, key, told)
        notes += sbatch_variables.take(config, os.environ)
        places: list[Place] = [cluster, *cluster.ranges]
        for place in places:
            if found := _TIME.fullmatch(text := str(sbatch_options(place).get("time"))):
                hours, minutes, seconds = map(int, found.groups("0"))
                if 0 < 3600 * hours + 60 * minutes + seconds <= cluster.signal_s:
                    raise ConfigError(
                        f"cluster.time={text} is not longer than cluster.signal_s={cluster.signal_s}, the seconds "
                        f"before the limit at which a job is left: a number alone is minutes, and hours are H:00:00; "
                        f"raise cluster.time, or lower cluster.signal_s"
                    )
        if not here and (job := os.environ.get("SLURM_JOB_ID")):
            notes.append(
                f"this is in Slurm job {job}, and another one is asked for (cluster.controller=here: its nodes)"
            )
    if config.local:
        if any(fault.kind == "cancel" for fault in config.faults.plan):
            raise ConfigError("faults: cancel is scancel of a Slurm step, and this run is local (cluster.kind)")
        notes += _share_local_gpus(config)
    elif here and (cluster.kind == "slurm" or config.internal.pilots):
        notes += _share_gpus_of_allocation(config, partitions)
    elif partitions:
        notes += _choose_by_partition(config, partitions)
    else:
        notes.append(f"{why_not}: cannot check whether the cluster has these nodes and GPUs")
        notes += _choose_gpus(config, "the cluster", [UNKNOWN], told=True)
        if preview:
            return notes
    _check_process_group(config)
    _check_container(config)
    if is_url(config.checkpoint.dir or ""):
        Bucket(config.checkpoint.dir or "")  # refuses one for which a package is missing
    return list(dict.fromkeys(notes))


def _settle_kind(config: Config, preview: bool) -> tuple[list[Partition], str, list[str]]:
    """Set cluster.kind. Return the cluster's partitions, why there are none, and lines about it."""
    notes, cluster = list[str](), config.cluster
    partitions, why_not = ([], "") if cluster.kind == "local" else client.partitions()
    asked = [f"cluster.{key}" for key in (*OWN_OPTIONS, "sbatch", "srun", "container_image") if getattr(cluster, key)]
    if cluster.kind == "local" and asked:
        notes.append(f"cluster=local ignores {', '.join(asked)}")
    silent = client.installed() if cluster.kind == "auto" else why_not != client.SHOWS_NONE and not preview
    if not partitions and cluster.kind != "local" and silent:
        raise EnvironmentProblem(
            f"cluster={cluster.kind}, but Slurm does not answer: {why_not}; try again (set SLURM_CONF, or load the "
            f"site's module, if its configuration is elsewhere), or cluster=local if you mean this machine"
        )
    if cluster.kind == "auto":
        asked += ["cluster.interface"] if cluster.interface not in ("auto", None) else []
        if not partitions and asked:
            raise EnvironmentProblem(f"{', '.join(asked)} asks for Slurm, but {why_not}; cluster=local would ignore it")
        cluster.kind = "slurm" if partitions else "local"
        notes.append("Slurm answers: cluster=slurm" if partitions else f"{why_not}: cluster=local")
    return partitions, why_not, notes


def _check_container(config: Config) -> None:
    """Refuse a container where srun has no option for one, or whose mounts cannot be written as pyxis reads them."""
    if config.cluster.container_image is None:
        return
    answer = client.call(commands.SRUN_OPTIONS, ASK_S)
    if answer.ok and container.OPTION not in answer.text:
        raise EnvironmentProblem(
            f"cluster.container_image={config.cluster.container_image}, but this Slurm has no pyxis: srun knows no "
            f"{container.OPTION}. Ask its admin, or start a container with job.python=[apptainer,exec,img.sif,python]"
        )
    run = Path(config.run.dir or config.run.root)
    for path in (run, *container.folders(config)):
        if re.search(r"[\s,:]", str(path)):
            raise ConfigError(
                f"cluster.container_image: {path} has to be mounted into the container, and pyxis takes no spaces, "
                f"commas or colons in such a path; rename the folder, or start the run in another one"
            )


def _check_process_group(config: Config) -> None:
    """Refuse NCCL between groups without GPUs, and process groups that the installed torch and torchft do not have.

    Call it when groups.gpus is set. What another interpreter than this one has is known when the script asks for it.
    """
    kind = config.torchft.process_group
    if kind == NATIVE and config.job.python is None and config.cluster.container_image is None and _is_old():
        raise EnvironmentProblem(
            f"torchft.process_group={kind} needs torch 2.14 and torchft 0.3 (or torchft-nightly 2026.10.26), or newer: "
            f"here is {patch_fit.versions()}"
        )
    if kind in (NCCL, BABY_NCCL) and not config.groups.gpus:
        raise EnvironmentProblem(
            f"torchft.process_group={kind} needs GPUs, but the groups have none (groups.gpus=0, or none was found): "
            f"leave it out (auto takes Gloo then), or give the groups GPUs"
        )


def _is_old() -> bool:
    """Return whether the installed torch or torchft is older than torch's own process groups between groups."""

    def has(package: str, *least: int) -> bool:
        with suppress(PackageNotFoundError):
            return Version(version(package)).release >= least
        return False

    return not (has("torch", 2, 14) and (has("torchft", 0, 3) or has("torchft-nightly", 2026, 10)))


def _choose_by_partition(config: Config, rows: Sequence[Partition]) -> list[str]:
    """Set groups.gpus from the partition that is named, or the default one. sbatch judges whether it has enough."""
    wanted = str(sbatch_options(config.cluster).get("partition") or "").split(",")
    mine = [row for row in rows if row.name in wanted] or [row for row in rows if row.default]
    where = f"partition {partition_names(mine)}" if mine else "the cluster"
    counts, has = [row.gpus for row in mine or rows], max((row.gpus for row in mine), default=0)
    return _choose_gpus(config, where, counts, any(row.gpus for row in rows), has)


def _choose_gpus(config: Config, where: str, counts: Sequence[float], told: bool, has: float = 0) -> list[str]:
    """Set groups.gpus, if it is not set, from the GPUs of kinds of nodes. Return a line if it is 0 and that is told.

    Args:
        has: the GPUs of the nodes that are meant, if that is sure: those with some were not chosen for their CPUs.

    Raises:
        ConfigError: such a node has GPUs, but fewer than workers.
    """
    groups = config.groups
    if groups.gpus is not None:
        return []
    need = groups.workers * groups.per_node
    groups.gpus = groups.workers if any(need <= count < UNKNOWN for count in counts) else 0
    if not groups.gpus and 0 < has < need:
        raise ConfigError(
            f"groups.workers={groups.workers} x groups.per_node={groups.per_node}: the nodes of {where} have no more "
            f"than {has:g} GPUs, one for each worker; lower groups.workers (and raise groups.nodes), or set "
            f"groups.gpus=0 to train on CPUs"
        )
    line = f"training on CPUs: {where} shows too few GPUs for all workers; groups.gpus=N asks for GPUs"
    return [line] if told and not groups.gpus else []


def gpus_of_allocation(environ: Mapping[str, str]) -> float:
    """Return the GPUs on each node of the allocation that this process runs in, at least. It may be UNKNOWN."""
    have = client.job_gpus(commands.job_name(environ)) if "SLURM_JOB_ID" in environ else UNKNOWN
    if have == UNKNOWN and (said := environ.get("SLURM_GPUS_ON_NODE") or environ.get("SLURM_GPUS_PER_NODE")):
        return read_gpus(",".join(f"gpu:{part}" for part in said.split(",")))  # set by slurmd, set by salloc
    return have


def _share_gpus_of_allocation(config: Config, rows: Sequence[Partition]) -> list[str]:
    """Set groups.gpus from the allocation that this process runs in, whatever its partition. Return lines about it."""
    have, groups = gpus_of_allocation(os.environ), config.groups
    told = "SLURM_JOB_ID" in os.environ and any(row.gpus for row in rows)
    notes = _choose_gpus(config, "the allocation", [have], told, have)
    if gres_per_node(config) > have:
        raise EnvironmentProblem(
            f"groups.gpus={groups.gpus} x groups.per_node={groups.per_node} asks for {gpus_per_node(config)} GPUs on a "
            f"node, the allocation has {have}: ask for more (sbatch --gpus-per-node), or lower one of them"
            f"{'' if have else f' ({UNKNOWN_TO_SLURM})'}"
        )
    return notes


def gpus_per_node(config: Config) -> int:
    """Return the GPUs that each node of the allocation must have."""
    return (config.groups.gpus or 0) * config.groups.per_node


def gres_per_node(config: Config) -> int:
    """Return the GPUs of each node that Slurm is asked for."""
    return gpus_per_node(config) if slurm_knows_gpus(config) else 0


def cpus_per_node(config: Config) -> int:
    """Return the CPUs that each node of the allocation must have. Controller and Lighthouse need next to none."""
    groups = config.groups
    return groups.workers * groups.cpus_per_worker * groups.per_node


def _share_local_gpus(config: Config) -> list[str]:
    """Set groups.gpus from the GPUs of this machine. Return a line if there are too few."""
    groups = config.groups
    from ftslurm.launchers.local import visible_gpus

    have = len(visible_gpus(os.environ)[1])
    pairs = most_groups(config) * groups.nodes
    notes = _choose_gpus(config, "this machine", [have // pairs * groups.per_node], have > 0)
    if (groups.gpus or 0) * pairs > have:
        raise EnvironmentProblem(
            f"groups.gpus={groups.gpus} for {pairs} groups x nodes asks for more GPUs than this machine "
            f"shows ({have}): lower groups.gpus (0: none) or groups.count"
        )
    return notes
