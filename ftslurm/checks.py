"""Does this configuration make sense by itself, whatever the cluster? Asked before anything is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftslurm.config import Config
from ftslurm.errors import ConfigError

# What a section may say, where its type alone does not.
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cluster.kind": ("auto", "local", "slurm"),
    "cluster.mode": ("steps",),
    "cluster.controller": ("job", "here"),
    "lighthouse.kind": ("torchft", "ftslurm"),
    "restart.policy": ("on_failure", "never"),
    "restart.on_state_loss": ("fail", "checkpoint"),
}
_AT_LEAST: Mapping[str, float] = {
    "groups.count": 1,
    "groups.min": 1,
    "groups.nodes": 1,
    "groups.workers": 1,
    "groups.per_node": 1,
    "groups.gpus": 0,
    "groups.cpus_per_worker": 1,
    "cluster.spare_nodes": 0,
    "cluster.signal_s": 1,
    "lighthouse.port": 0,
    "lighthouse.join_timeout_ms": 1,
    "lighthouse.heartbeat_timeout_ms": 200,  # torchft's heartbeats come every 100 ms: less would evict the healthy
    "lighthouse.quorum_tick_ms": 1,
    "torchft.timeout_s": 1,
    "torchft.quorum_timeout_s": 1,
    "torchft.connect_timeout_s": 1,
    "torchft.quorum_retries": 1,
    "restart.max_per_group": 0,
    "restart.window_s": 1,
    "restart.backoff_s": 0,
    "restart.backoff_max_s": 0,
    "health.heartbeat_s": 0.1,
    "health.orphan_after_s": 1,
    "health.start_timeout_s": 1,
    "job.total_steps": 1,
    "checkpoint.every": 0,
    "stop.grace_s": 0,
}
_AT_MOST: Mapping[str, float] = {
    "groups.count": 10_000,
    "groups.nodes": 10_000,
    "groups.workers": 1_000,
    "groups.per_node": 1_000,
    "cluster.spare_nodes": 10_000,
    "lighthouse.port": 65_535,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def get(config: Config, key: str) -> Any:
    """The value of a dotted key: get(config, "groups.count")."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def check(config: Config) -> None:
    """Refuse a configuration that makes no sense by itself, whatever the cluster.

    Raises:
        ConfigError: the message names the keys and what they may be.
    """
    for key, choices in _CHOICES.items():
        if get(config, key) not in choices:
            raise ConfigError(f"{key}={get(config, key)}: must be one of {', '.join(choices)}")
    for key, least in _AT_LEAST.items():
        value = get(config, key)
        if value is not None and not value >= least:
            raise ConfigError(f"{key}={value}: must be at least {least}")
    for key, most in _AT_MOST.items():
        if get(config, key) > most:
            raise ConfigError(f"{key}={get(config, key)}: must be at most {most}")
    for rule in (_check_groups, _check_job, _check_notation, _check_places, _check_times, _check_faults):
        rule(config)


def _check_groups(config: Config) -> None:
    groups = config.groups
    if groups.min > groups.count:
        raise ConfigError(
            f"groups.min={groups.min} is above groups.count={groups.count}: no step could ever be taken; "
            f"lower groups.min or raise groups.count"
        )
    if groups.per_node > groups.count:
        raise ConfigError(
            f"groups.per_node={groups.per_node} is above groups.count={groups.count}: lower groups.per_node"
        )


def _check_job(config: Config) -> None:
    job = config.job
    for key, name in (("job.name", job.name), ("run.name", config.run.name)):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{key}={name!r}: up to 64 letters, digits, dots, dashes and underscores, please")
    if (job.script is None) == (job.module is None):
        which = "both are set" if job.script else "neither is set"
        raise ConfigError(
            f"job.script and job.module: {which}; give exactly one, as in `job.script=train.py`, "
            f"or choose a ready job such as `job=ddp`"
        )
    if job.script is not None and not Path(job.script).expanduser().is_file():
        what = "is a folder" if Path(job.script).expanduser().is_dir() else f"no such file, seen from {Path.cwd()}"
        raise ConfigError(f"job.script={job.script}: {what}")
    if not isinstance(job.args, (list, dict, type(None))):
        raise ConfigError(f"job.args={job.args!r}: must be a list, or a mapping that becomes --key value")
    if not isinstance(job.python, (str, list, type(None))) or job.python in ("", []):
        raise ConfigError(f"job.python={job.python!r}: must be an interpreter, or a list that ends with one")
    for name in job.env:
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"job.env.{name}: not a name for an environment variable")


def _check_notation(config: Config) -> None:
    checks: tuple[tuple[str, re.Pattern[str], str], ...] = (
        ("groups.mem", _MEMORY, "a number with K, M, G or T, as 64G"),
        ("cluster.time", _TIME, "minutes or [days-]hours:minutes:seconds, as 1-12:00:00"),
    )
    for key, pattern, meaning in checks:
        value = get(config, key)
        if value is not None and not pattern.fullmatch(str(value)):
            raise ConfigError(f"{key}={value}: must be {meaning}")
    cluster = config.cluster
    if cluster.time is not None and time_limit_s(str(cluster.time)) < cluster.signal_s + 60:
        raise ConfigError(
            f"cluster.time={cluster.time} leaves no time to train: the run is told to stop cluster.signal_s="
            f"{cluster.signal_s} s before the limit, and Slurm may be a minute early"
        )
    for line in config.cluster.setup:
        if "\n" in line:
            raise ConfigError(f"cluster.setup: one shell line per entry, {line!r} has several")


def _check_places(config: Config) -> None:
    for key in ("run.root", "run.dir"):
        if any(sign in (get(config, key) or "") for sign in "%\\\n"):
            raise ConfigError(
                f"{key}={get(config, key)!r}: Slurm gives %, backslashes and newlines in a path a meaning"
            )
    taken = {"-l", "--label", "-u", "--unbuffered", "--pty", "-i", "--input", "-o", "--output", "-e", "--error"}
    for word in config.cluster.srun:
        if word.partition("=")[0] in taken:
            raise ConfigError(f"cluster.srun={word}: ftslurm needs srun's stdin, stdout and stderr for itself")


def _check_times(config: Config) -> None:
    health, lighthouse = config.health, config.lighthouse
    if health.orphan_after_s < 2 * health.heartbeat_s:
        raise ConfigError(
            f"health.orphan_after_s={health.orphan_after_s} is less than two heartbeats "
            f"(health.heartbeat_s={health.heartbeat_s}): healthy workers would end themselves"
        )
    if lighthouse.heartbeat_timeout_ms >= 1000 * config.torchft.quorum_timeout_s:
        raise ConfigError(
            f"lighthouse.heartbeat_timeout_ms={lighthouse.heartbeat_timeout_ms} is not below torchft.quorum_timeout_s="
            f"{config.torchft.quorum_timeout_s}: survivors would give up before the Lighthouse notices a death"
        )


def time_limit_s(text: str) -> float:
    """Seconds in Slurm's notation of a time limit: minutes, m:s, h:m:s, d-h, d-h:m or d-h:m:s; infinite if it is."""
    if not text[0].isdigit():
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], [*parts, 0][1]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def _check_faults(config: Config) -> None:
    size = config.groups.nodes * config.groups.workers
    for fault in config.faults.kill:
        what = f"faults.kill: {{group: {fault.group}, at: {fault.at:g}}}"
        if not 0 <= fault.group < config.groups.count or not 0 <= fault.rank < size:
            raise ConfigError(
                f"{what}: there is no rank {fault.rank} of group {fault.group}; groups are numbered from 0 "
                f"(groups.count={config.groups.count}), ranks too ({size} in each group)"
            )
        if fault.at <= 0 or (fault.at < 1 and config.job.total_steps is None):
            raise ConfigError(
                f"{what}: below 1, `at` is a fraction of job.total_steps, which is not set: add job.total_steps=N, or "
                f"name a step, as in 'faults.kill=[{{group: {fault.group}, at: 50}}]'"
            )
