"""Check that the settings of a configuration make sense together, before anything is submitted.

Each rule yields what is wrong. What a setting may be by itself is in config/schema.py, what the cluster decides in
submission/capabilities.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ftslurm.config import slurm_options
from ftslurm.config.node_commands import check_preflight
from ftslurm.config.receivers import check_receivers
from ftslurm.config.schema import (
    AUTO,
    CONTROLLER,
    EACH,
    MOST_GROUPS,
    Config,
    Place,
    members,
    most_groups,
    sbatch_options,
    words,
)
from ftslurm.config.store_url import is_url, refusal
from ftslurm.config.typed_values import made, written
from ftslurm.errors import ConfigError
from ftslurm.protocol.run_states import FAULTS
from ftslurm.security import owned_files

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")  # Linux allows 15 characters
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[^\s-]\S*")
_MOUNT = re.compile(r"/[^\s:,]*(:/[^\s:,]*(:[\w+=.-]+)?)?")
# What comes after another option than -m is a name, as in `conda run -n deepspeed python`.
_LAUNCHER = re.compile(
    r"(?:^|(?<!\S)(?:[^-\s]\S*|-m) )(?:\S*/)?"
    r"(torchrun|accelerate|deepspeed|horovodrun|torch\.distributed\.\w+|accelerate\.commands\.\w+)(?!\S)"
)
_NOT_PASSED_ON = ("FTSLURM_", "SLURM_", "SRUN_", "SBATCH_", "SLURMD_", "SUBMITIT_")


def check(config: Config) -> None:
    """Refuse a configuration that makes no sense, whatever the cluster.

    Raises:
        ConfigError: the message names the keys and what they may be.
    """
    config = made(Config, asdict(config))
    for rule in _RULES:
        for problem in rule(config):
            raise ConfigError(problem)


def _check_notation(config: Config) -> Iterator[str]:
    name, interface = config.run.name, config.cluster.interface
    if not NAME.fullmatch(name):
        yield f"run.name={name!r}: must be up to 64 letters, digits, dots, dashes, underscores; no sign first"
    names = words(interface)
    if interface == [] or not all(map(_INTERFACE.fullmatch, names)) or (len(names) > 1 and AUTO in names):
        yield f"cluster.interface={written(interface)}: must be auto, null, or names of interfaces as ib0 or [ib0,eth0]"


def _check_groups(config: Config) -> Iterator[str]:
    groups = config.groups
    if groups.min > groups.count:
        yield f"groups.min={groups.min} is above groups.count={groups.count}: no step could be taken; lower groups.min"
    if groups.max is not None and groups.max < groups.count:
        yield f"groups.max={groups.max} is below groups.count={groups.count}, with which the run begins: raise it"
    if most_groups(config) > groups.count and groups.roles:
        yield "groups.max with groups.roles: groups that have roles cannot become more; leave one of them out"
    if groups.mem is not None and not re.fullmatch(r"\d+[KMGTkmgt]?", groups.mem):
        yield f"groups.mem={groups.mem!r}: must be a whole number with K, M, G or T, as 64G; without one it is of M"


def _check_roles(config: Config) -> Iterator[str]:
    roles, serve, groups = config.groups.roles, config.groups.serve, config.groups
    for name, count in roles.items():
        if not NAME.fullmatch(name) or count < 1:
            yield f"groups.roles.{name}={count}: a role has a name as run.name has, and one group or more"
    if roles and sum(roles.values()) != groups.count:
        sizes = " + ".join(f"{count} {name}" for name, count in roles.items())
        yield f"groups.roles ({sizes}) has other groups than groups.count={groups.count}: they must be as many"
    if roles and not config.independent:
        yield f"groups.roles with lighthouse.kind={config.lighthouse.kind}: groups are alike then; use lighthouse=none"
    unknown = [name for name in serve if name not in roles]
    if unknown:
        there = ", ".join(roles) or "none; give them with groups.roles"
        yield f"groups.serve: {unknown[0]!r} is no role; there are {there}"
    working = groups.count - sum(roles[name] for name in set(serve))
    if working == 0:
        yield "groups.serve names every role of groups.roles: no group would be left to end the run"
    if groups.min > working:
        yield f"groups.min={groups.min} is above the {working} groups that serve no others (groups.serve): lower it"


def _check_array(config: Config) -> Iterator[str]:
    cluster, groups = config.cluster, config.groups
    if not config.job_per_group:
        if cluster.ranges:
            yield f"cluster.ranges with cluster={cluster.kind}: it is for cluster=array"
        return
    if groups.per_node > 1:
        yield f"groups.per_node={groups.per_node} with cluster=array: Slurm lets jobs share a node; leave it out"
    if cluster.spare_nodes:
        yield f"cluster.spare_nodes={cluster.spare_nodes} with cluster=array: another job comes; ask for standby.count"
    if config.standby.count == EACH:
        yield "standby.count=each with cluster=array: a standby has a Slurm job of its own; ask for a number"
    yield from _check_ranges(config)


def _check_ranges(config: Config) -> Iterator[str]:
    seen: dict[int, str] = {}
    for one in config.cluster.ranges:
        try:
            ids = [group for group in members(one.groups) if group < most_groups(config)]
        except ValueError:
            yield f"cluster.ranges: groups={one.groups} is no range: 2, 2-5, 2- (below {MOST_GROUPS}) or {CONTROLLER}"
            continue
        if not ids and one.groups != CONTROLLER:
            yield f"cluster.ranges: groups={one.groups} has no group; there are 0 to {most_groups(config) - 1}"
        for group in ids:
            if group in seen:
                yield f"cluster.ranges: group {group} is in {seen[group]} and in {one.groups}"
            seen[group] = one.groups


def _check_job(config: Config) -> Iterator[str]:
    job = config.job
    if (job.script is None) == (job.module is None):
        which = "both are set" if job.script else "neither is set"
        yield f"job.script and job.module: {which}; give one, as in `job.script=train.py`, or choose a job as `job=ddp`"
    parent = config.internal.parent
    copied = parent is not None and Path(parent, "code").is_dir()  # resumed with that copy
    script = None if job.script is None else os.path.expanduser(job.script)
    if script is not None and not os.path.isfile(script) and not copied:
        gone = f"no such file that you may read, seen from {Path.cwd()}"
        yield f"job.script={job.script}: {'is a folder' if os.path.isdir(script) else gone}"
    if job.python in ("", []):
        yield "job.python: must be an interpreter, or a list that ends with one"
    if found := _LAUNCHER.search(" ".join(words(job.python))):
        yield (
            f"job.python: {found[1]} starts ranks, and ftslurm takes its place: leave it out, name the training in "
            f"job.script; groups.workers is how many ranks each node has, groups.nodes how many nodes"
        )
    called = [Path(word).name for word in words(job.python)]
    if called[:2] == ["conda", "run"] and not {"--no-capture-output", "--live-stream"}.intersection(called):
        yield (
            f"job.python={job.python}: `conda run` keeps the workers' standard output until they end, and ftslurm "
            "hears nothing from them; add --no-capture-output after `run`, or use the environment's own bin/python"
        )
    for name in job.env:
        if not _VARIABLE.fullmatch(name):
            yield f"job.env.{name}: not a name for an environment variable"
    for name in job.secrets:
        if not _VARIABLE.fullmatch(name):
            name = name.partition("=")[0]  # what follows may be the secret itself
            yield f"job.secrets: {name!r} with a value, or no name for a variable; give names alone"
        if name in job.env:
            yield f"job.secrets={name} with job.env.{name}: a variable comes from one of them; leave the other out"
        if name.startswith(_NOT_PASSED_ON):
            yield f"job.secrets={name}: ftslurm removes variables with this prefix; rename it"


def _may_be_folder(folder: str) -> bool:
    """Return whether this is a folder, or can become one."""
    try:
        path = Path(folder).expanduser()
        return folder != "" and (path.is_dir() or not path.exists())
    except (OSError, RuntimeError):  # a folder above it cannot be read, or there is no such user
        return False


def _check_places(config: Config) -> Iterator[str]:
    for key, path in (("run.root", config.run.root), ("run.dir", config.run.dir)):
        if any(sign in (path or "") for sign in "%\\\n"):
            yield f"{key}={path!r}: Slurm gives %, backslashes and newlines in a path a meaning"
    if (word := owned_files.unknown(config.run.trust)) is not None:
        yield f"run.trust={word}: there is neither a user nor a group of that name on this machine"
    if config.local and config.cluster.interface not in ("auto", None):
        yield f"cluster.interface={config.cluster.interface} with cluster=local: a local run stays on loopback"
    folder = config.checkpoint.dir
    if folder and is_url(folder):
        yield from _check_store(config, folder)
    elif folder is not None and not _may_be_folder(folder):
        yield f"checkpoint.dir={folder}: must be a folder that you can read; default: one in the run directory"
    for word, why in slurm_options.refused_of_srun(config.cluster.srun):
        yield f"cluster.srun={word}: {why}"
    places: list[Place] = [config.cluster, *config.cluster.ranges]
    for place in places:
        for option, why in slurm_options.refused_of_sbatch(sbatch_options(place)):
            yield f"cluster.sbatch.{option}: {why}"


def _check_store(config: Config, url: str) -> Iterator[str]:
    if any(sign in url for sign in "@?# \n"):
        yield f"checkpoint.dir={url.partition('://')[0]}://...: must be SCHEME://BUCKET/FOLDER; keys: job.secrets"
    if why := refusal(url):
        yield f"checkpoint.dir={why}"
    if config.job.module == "torchtitan.train":
        yield f"checkpoint.dir={url} with job=torchtitan: torchtitan saves in a format of its own, to folders"


def _check_container(config: Config) -> Iterator[str]:
    cluster = config.cluster
    if cluster.container_image is None:
        if cluster.container_mounts:
            yield "cluster.container_mounts without cluster.container_image: name the image, or leave it out"
        return
    if config.local:
        yield "cluster.container_image with cluster=local: Slurm starts such containers (pyxis)"
    if not _IMAGE.fullmatch(cluster.container_image):
        yield f"cluster.container_image={cluster.container_image!r}: must be one path or name, without spaces"
    for mount in cluster.container_mounts:
        if not _MOUNT.fullmatch(mount):
            yield f"cluster.container_mounts: {mount!r} is not SOURCE or SOURCE:TARGET[:FLAGS] (no commas, no spaces)"


def _check_times(config: Config) -> Iterator[str]:
    hang_s, least = config.health.hang_after_s, 2 * config.heartbeat_s
    if hang_s != AUTO and 0 < hang_s < least:
        yield f"health.hang_after_s={hang_s:g}: must be at least {least:g} (two of a group's reports), 0 (off) or auto"


def _check_comparison(config: Config) -> Iterator[str]:
    every = config.health.compare_every
    if every not in (AUTO, 0) and config.independent:
        yield f"health.compare_every={every} with lighthouse.kind=none: groups share no weights"
    if config.health.buffers == "average" and config.independent:
        yield "health.buffers=average with lighthouse.kind=none: groups share no weights"


def _check_faults(config: Config) -> Iterator[str]:
    size, alone = config.groups.nodes * config.groups.workers, config.independent
    kinds = [fault.kind for fault in config.faults.plan]
    if alone and "lighthouse" in kinds:
        yield "faults: 'lighthouse' with lighthouse.kind=none: there is none that could be killed"
    if alone and config.faults.plan and not config.groups.serve:
        yield "faults.plan with lighthouse.kind=none: steps are not reported; use `ftslurm inject`"
    if "corrupt" in kinds and config.health.compare_every == 0:
        yield "faults: 'corrupt' with health.compare_every=0: nothing would find it"
    for kind in kinds:
        if kind not in FAULTS:
            yield f"faults: {kind!r} is no fault; there are {', '.join(FAULTS)}"
    for fault in config.faults.plan:
        what = f"faults.plan: {{kind: {fault.kind}, group: {fault.group}, at: {fault.at:g}, rank: {fault.rank}}}"
        if not 0 <= fault.group < config.groups.count or not 0 <= fault.rank < size:
            yield f"{what}: there is no such rank; groups.count={config.groups.count}, ranks are 0 to {size - 1}"
        if fault.at <= 0 or (fault.at < 1 and config.job.total_steps is None):
            yield f"{what}: below 1, `at` is a fraction of job.total_steps, which is not set; or name a step, as at: 50"


_RULES = (
    _check_notation, _check_times, _check_groups, _check_roles, _check_array,
    _check_job, _check_places, _check_container, _check_comparison, _check_faults,
    check_receivers, check_preflight,
)  # fmt: skip
