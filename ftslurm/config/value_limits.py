"""What each setting may be by itself: choices, limits, notation, and what files, commands and clocks can take.

What settings may be together is in config/validate.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

from ftslurm.config.schema import AUTO, EACH, MOST_GROUPS, Config
from ftslurm.config.store_url import is_url
from ftslurm.errors import ConfigError
from ftslurm.security.json_text import is_finite

MAX_TEXT_BYTES = 100_000  # an argument or a variable of a process has at most 128 KiB
MAX_PATH_BYTES = 3500  # Linux has 4096, and the run's own files lie deeper
MAX_NAME_BYTES = 255  # of one folder or file
MAX_TIME = 10**9  # seconds or milliseconds: operating systems and libraries overflow beyond
MAX_NODES = 65_536  # of a run; Slurm has no larger cluster
MAX_WORKERS = 1_000_000  # of a run

CHOICES: Mapping[str, tuple[str, ...]] = {
    "groups.bind": ("auto", "cores", "none"),
    "cluster.kind": ("auto", "local", "slurm"),
    "cluster.mode": ("steps", "array"),
    "cluster.controller": ("job", "here"),
    "lighthouse.kind": ("ftslurm", "torchft", "none"),
    "torchft.process_group": ("auto", "gloo", "nccl", "baby-nccl"),
    "torchft.transport": ("http", "process_group"),
    "job.snapshot": ("auto", "copy", "none"),
    "restart.policy": ("on_failure", "never"),
    "restart.on_state_loss": ("fail", "checkpoint"),
}
# The least and the most; None: no bound of its own.
LIMITS: Mapping[str, tuple[float | None, float | None]] = {
    "job.total_steps": (1, None),
    "job.snapshot_max_mb": (1, 100_000),
    "groups.count": (1, MOST_GROUPS),
    "groups.min": (1, None),
    "groups.max": (None, MOST_GROUPS),
    "groups.nodes": (1, 10_000),
    "groups.workers": (1, 1_000),
    "groups.per_node": (1, 1_000),
    "groups.gpus": (0, None),
    "groups.cpus_per_worker": (1, None),
    "cluster.spare_nodes": (0, 10_000),
    "cluster.segment": (1, MAX_NODES),
    "cluster.signal_s": (1, MAX_TIME),
    "cluster.poll_s": (1, MAX_TIME),
    "cluster.handover_s": (1, MAX_TIME),
    "lighthouse.port": (0, 65_535),
    "lighthouse.join_timeout_ms": (1, MAX_TIME),
    "lighthouse.heartbeat_timeout_ms": (200, MAX_TIME),  # heartbeats come every 100 ms or less often
    "lighthouse.quorum_tick_ms": (1, MAX_TIME),
    "torchft.timeout_s": (1, MAX_TIME),
    "torchft.quorum_timeout_s": (1, MAX_TIME),
    "torchft.connect_timeout_s": (1, MAX_TIME),
    "torchft.quorum_retries": (1, None),
    "restart.max_per_group": (0, None),
    "restart.window_s": (1, MAX_TIME),
    "restart.backoff_s": (0, MAX_TIME),
    "restart.backoff_max_s": (0, MAX_TIME),
    "health.heartbeat_s": (0.1, MAX_TIME),
    "health.orphan_after_s": (1, MAX_TIME),
    "health.lost_after_s": (1, MAX_TIME),
    "health.start_timeout_s": (1, MAX_TIME),
    "health.join_timeout_s": (0, MAX_TIME),
    "health.wait_timeout_s": (0, MAX_TIME),
    "health.first_step_s": (0, MAX_TIME),
    "health.hang_least_s": (1, MAX_TIME),
    "health.preflight_timeout_s": (1, 3600),
    "checkpoint.every": (0, None),
    "checkpoint.keep": (0, None),
    "logs.max_mb": (0, None),
    "stop.grace_s": (0, MAX_TIME),
    "hooks.timeout_s": (1, 3600),
    "metrics.every_s": (1, 3600),
    "faults.mean_s": (0, MAX_TIME),
    "faults.seed": (0, None),
    "faults.count": (0, None),
}
MOST_STANDBYS = 10_000
PATHS = ("run.root", "run.dir", "checkpoint.dir", "job.script", "metrics.textfile", "cluster.exclude_file")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")  # Linux allows 15 characters
_MEMORY = re.compile(r"[0-9]{1,12}[KMGT]?", re.IGNORECASE)
_TIME = re.compile(r"([0-9]{1,9}-)?[0-9]{1,9}(:[0-9]{1,9}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_SWITCHES = re.compile(r"[1-9][0-9]{0,5}(@([0-9]{1,9}-)?[0-9]{1,9}(:[0-9]{1,9}){0,2})?")


def get(config: Config, key: str) -> Any:
    """Return the value of a dotted key: get(config, "groups.count")."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def check_values(config: Config) -> None:
    """Check every value by itself.

    Raises:
        ConfigError: the message names the key and what it may be.
    """
    for key, choices in CHOICES.items():
        if get(config, key) not in choices:
            raise ConfigError(f"{key}={get(config, key)}: must be one of {', '.join(choices)}")
    for key, (least, most) in LIMITS.items():
        value = get(config, key)
        if value is not None and least is not None and not value >= least:  # NaN neither
            raise ConfigError(f"{key}={value}: must be at least {least}")
        if value is not None and most is not None and value > most:
            raise ConfigError(f"{key}={value}: must be at most {most}")
    for key, value in _values(config, ""):
        if isinstance(value, str):
            _check_text(key, value)
        elif (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and not key.startswith("job.args")  # the script's own
            and not is_finite(value)
        ):
            raise ConfigError(f"{key}={value!s:.40}: must be a number, and one below 2^53")
    _check_hang_limit(config.health.hang_after_s)
    _check_standbys(config.standby.count)
    _check_size(config)
    _check_notation(config)


def _values(value: object, key: str) -> Iterator[tuple[str, object]]:
    """Generate every single value with its key, and the keys of the user's own mappings."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _values(getattr(value, field.name), f"{key}.{field.name}".lstrip("."))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield key, name
            yield from _values(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, key)
    else:
        yield key, value


def _check_text(key: str, text: str) -> None:
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        size = -1
    if "\0" in text or size < 0:
        raise ConfigError(f"{key}={text[:60]!r}: a zero byte or half a character, which no file or command can have")
    if size > MAX_TEXT_BYTES:
        raise ConfigError(f"{key}={text[:60]!r}...: {size} bytes, and no command takes more than {MAX_TEXT_BYTES}")
    if key in PATHS and key != "checkpoint.dir" and is_url(text):
        raise ConfigError(f"{key}={text}: is a URL and no path; give a path that all nodes of the run share")
    if key in PATHS and (
        size > MAX_PATH_BYTES or any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in PurePath(text).parts)
    ):
        raise ConfigError(
            f"{key}={text[:60]!r}...: a path has at most {MAX_PATH_BYTES} bytes here, and each name in it at "
            f"most {MAX_NAME_BYTES}"
        )


def _check_hang_limit(value: object) -> None:
    if value == AUTO:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_TIME:
        raise ConfigError(f"health.hang_after_s={value!s:.40}: must be a number of seconds up to {MAX_TIME}, or {AUTO}")


def _check_standbys(value: object) -> None:
    if value in (AUTO, EACH):
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_STANDBYS:
        raise ConfigError(f"standby.count={value!s:.40}: must be a number up to {MOST_STANDBYS}, {EACH}, or {AUTO}")


def _check_size(config: Config) -> None:
    groups = config.groups
    nodes = groups.count * groups.nodes
    for what, count, most in (("nodes", nodes, MAX_NODES), ("workers", nodes * groups.workers, MAX_WORKERS)):
        if count > most:
            raise ConfigError(
                f"groups.count={groups.count} with groups.nodes={groups.nodes} and groups.workers={groups.workers} has "
                f"{count} {what}, and a run at most {most}: lower one of them"
            )


def _check_notation(config: Config) -> None:
    for key, name in (("job.name", config.job.name), ("run.name", config.run.name), ("run.sweep", config.run.sweep)):
        if name is not None and not NAME.fullmatch(name):
            raise ConfigError(
                f"{key}={name!r}: must be up to 64 letters, digits, dots, dashes and underscores, the first one a "
                f"letter or a digit"
            )
    memory, cluster = config.groups.mem, config.cluster
    if memory is not None and not _MEMORY.fullmatch(memory):
        raise ConfigError(f"groups.mem={memory}: must be a number with K, M, G or T, as 64G")
    limits = [("cluster.time=", cluster.time)]
    limits += [(f"cluster.ranges: groups={one.groups}, time=", one.time) for one in cluster.ranges]
    for key, time in limits:
        if time is not None and not _TIME.fullmatch(str(time)):
            raise ConfigError(f"{key}{time}: must be minutes or [days-]hours:minutes:seconds, as 1-12:00:00")
    _check_interface(cluster.interface)
    if cluster.switches is not None and not _SWITCHES.fullmatch(str(cluster.switches)):
        raise ConfigError(
            f"cluster.switches={cluster.switches}: must be a number of leaf switches, or one with the longest wait, as "
            f"1@10:00"
        )
    for line in cluster.setup:
        if "\n" in line:
            raise ConfigError(f"cluster.setup: one shell line per entry, {line!r} has several")


def _check_interface(value: object) -> None:
    names = value if isinstance(value, list) else [] if value is None else [value]
    if value == [] or not all(isinstance(name, str) and _INTERFACE.fullmatch(name) for name in names):
        raise ConfigError(
            f"cluster.interface={value!s:.60}: must be auto, null, the name of a network interface as ib0, or several "
            f"names as [ib0,eth0]"
        )
    if len(names) > 1 and "auto" in names:
        raise ConfigError("cluster.interface: auto among names of interfaces; give it alone")
