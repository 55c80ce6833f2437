"""Every setting: its name, type, default and meaning, and the checks that need no cluster.

The dataclasses are Hydra's schema (so they are mutable: OmegaConf cannot fill frozen ones); after `check` nobody
changes them. `conf/<section>/<preset>.yaml` holds only what differs from the defaults here.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftslurm.errors import ConfigError

MISSING: Any = "???"  # OmegaConf's mark of a value that must be given


@dataclass
class RunConfig:
    name: str = "${job.name}"  # part of the run id, of the run directory's name and of the Slurm job's name
    root: str = "runs"  # where run directories lie; on Slurm a folder that all nodes share
    dir: str | None = None  # this run's directory; default: root/name-time-random


@dataclass
class JobConfig:
    name: str = "script"  # letters, digits, dot, dash and underscore
    script: str | None = None  # path of the training script, seen from here; or
    module: str | None = None  # a module to run as `python -m` would
    # A list, or a mapping that becomes --key value (true: --key alone; null or false: left out).
    args: Any = None
    env: dict[str, str] = field(default_factory=dict)  # set in every worker before torch is imported
    # The interpreter; a list if it has a prefix, as [apptainer, exec, img.sif, python]. Default: this one.
    python: Any = None
    # Steps the script will take, if known: for the progress bar, and for drills at a fraction of the run.
    total_steps: int | None = None


@dataclass
class GroupsConfig:
    count: int = 2  # replica groups; their ids are 0..count-1
    min: int = 1  # the fewest groups that may step; with fewer the run fails
    nodes: int = 1  # nodes of one group
    workers: int = 1  # workers (ranks) of a group on each of its nodes
    per_node: int = 1  # groups that may share one node; their GPUs are disjoint
    gpus: int | None = None  # GPUs of a group on each of its nodes; default: workers if the cluster has GPUs, else 0
    cpus_per_worker: int = 1  # CPUs asked for per worker; also OMP_NUM_THREADS, unless job.env sets that
    mem: str | None = None  # memory of one group on one node, in Slurm's notation (64G); default: the partition's


@dataclass
class ClusterConfig:
    kind: str = "auto"  # auto (Slurm if it answers, else local), local (this machine) or slurm
    mode: str = "steps"  # steps: one allocation, one Slurm step per group
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # time limit in Slurm's notation (1-12:00:00)
    constraint: str | None = None
    exclude: str | None = None
    nodelist: str | None = None
    reservation: str | None = None
    spare_nodes: int = 0  # nodes asked for beyond what the groups need; a group whose node is lost moves there
    signal_s: int = 120  # Slurm warns the controller this long before the time limit; the run then stops cleanly
    setup: list[str] = field(default_factory=list)  # shell lines before the controller starts, as `module load cuda`
    sbatch: dict[str, Any] = field(default_factory=dict)  # further sbatch options: {mail-type: END, exclusive: true}
    srun: list[str] = field(default_factory=list)  # further arguments of every group's srun
    controller: str = "job"  # job: in the job's batch process; here: in this process, inside an allocation you hold


@dataclass
class LighthouseConfig:
    """torchft's own Lighthouse. The defaults were chosen by measuring, see benchmarks/lighthouse_timing.py.

    A survivor stalls for about heartbeat_timeout_ms when another group dies without a word, because the stock
    Lighthouse learns of a death only by silence (5 s with torchft's default). torchft's heartbeats come every 100 ms
    from a Rust thread that needs no GIL.
    """

    kind: str = "torchft"  # torchft: the stock Lighthouse
    port: int = 0  # 0: any free port
    join_timeout_ms: int = 10000  # how long a quorum waits for a healthy group that is not ready; short ones thrash
    heartbeat_timeout_ms: int = 1000  # silence after which a group counts as dead: what survivors wait for
    quorum_tick_ms: int = (
        20  # how often the Lighthouse looks; at 20 groups of heartbeats it still costs no CPU to speak of
    )


@dataclass
class TorchftConfig:
    """Time-outs of torchft's managers, passed as torchft's own variables; whole seconds, because torchft reads ints."""

    timeout_s: int = 60  # one collective, one commit vote, one fetch while healing (TORCHFT_TIMEOUT_SEC)
    quorum_timeout_s: int = 60  # one quorum; longer than the longest step, or than the time between syncs of LocalSGD
    connect_timeout_s: int = 60  # reaching the Lighthouse or a manager (TORCHFT_CONNECT_TIMEOUT_SEC)
    quorum_retries: int = 200  # never 0: a Lighthouse that dies during a quorum would take every group with it


@dataclass
class RestartConfig:
    policy: str = "on_failure"  # on_failure or never
    max_per_group: int = 5  # failures of one group within window_s that are answered by a restart
    window_s: float = 3600.0  # older failures are forgotten
    backoff_s: float = (
        1.0  # the first restart comes at once, the second after this long, each later one after twice that
    )
    backoff_max_s: float = 60.0  # no wait is longer
    on_state_loss: str = "fail"  # all groups down at once: fail, or checkpoint (the script resumes from checkpoint.dir)


@dataclass
class HealthConfig:
    heartbeat_s: float = 2.0  # how often the controller and the workers say that they are there
    orphan_after_s: float = 60.0  # a worker that hears nothing from its controller for this long ends itself
    start_timeout_s: float = 600.0  # from launch until every worker is ready and the script runs


@dataclass
class CheckpointConfig:
    """Offered to scripts through the environment (FTSLURM_CHECKPOINT_*); ftslurm itself writes no checkpoint."""

    dir: str | None = None  # default: checkpoints/ in the run directory
    every: int = 0  # steps between two checkpoints, for scripts that honour it; 0: none


@dataclass
class StopConfig:
    grace_s: float = 10.0  # between SIGTERM to the scripts and SIGKILL


@dataclass
class KillFault:
    """kill -9 of one rank of a group, when that group reaches a step."""

    group: int = MISSING
    at: float = MISSING  # a step (1 or more), or a fraction of job.total_steps (below 1)
    rank: int = 0


@dataclass
class FaultsConfig:
    """Drills: real faults, done on purpose."""

    kill: list[KillFault] = field(default_factory=list)


@dataclass
class Config:
    """One run, whole. Each field is a section; `conf/<section>/` holds its presets."""

    run: RunConfig = field(default_factory=RunConfig)
    job: JobConfig = field(default_factory=JobConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    lighthouse: LighthouseConfig = field(default_factory=LighthouseConfig)
    torchft: TorchftConfig = field(default_factory=TorchftConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    follow: bool | None = None  # stay and show the run; default: yes on a terminal, and always for a local run


# What a section may say, where its type alone does not.
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cluster.kind": ("auto", "local", "slurm"),
    "cluster.mode": ("steps",),
    "cluster.controller": ("job", "here"),
    "lighthouse.kind": ("torchft",),
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
    for rule in (_check_groups, _check_job, _check_notation, _check_times, _check_faults):
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
        raise ConfigError(f"job.script={job.script}: no such file, seen from {Path.cwd()}")
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
    for line in config.cluster.setup:
        if "\n" in line:
            raise ConfigError(f"cluster.setup: one shell line per entry, {line!r} has several")


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


def _check_faults(config: Config) -> None:
    size = config.groups.nodes * config.groups.workers
    for fault in config.faults.kill:
        if not 0 <= fault.group < config.groups.count or not 0 <= fault.rank < size:
            raise ConfigError(f"faults.kill={fault}: no such group or rank (groups.count={config.groups.count})")
        if fault.at <= 0 or (fault.at < 1 and config.job.total_steps is None):
            raise ConfigError(
                f"faults.kill={fault}: `at` is a step (1 or more), or a fraction of job.total_steps, "
                f"which must be set then"
            )


def script_arguments(args: list[Any] | dict[str, Any] | None) -> list[str]:
    """The script's argument list: a list as it is; {lr: 0.1, amp: true, note: null} becomes --lr 0.1 --amp."""
    if args is None or isinstance(args, list):
        return [str(a) for a in args or ()]
    out: list[str] = []
    for key, value in args.items():
        if value is None or value is False:
            continue
        out.append(f"--{key}")
        if value is not True:
            out += [str(v) for v in value] if isinstance(value, list) else [str(value)]
    return out


def interpreter(job: JobConfig, default: str) -> list[str]:
    """The command that is Python for the workers, prefix included."""
    if job.python is None:
        return [default]
    return [job.python] if isinstance(job.python, str) else [str(part) for part in job.python]


def absolute(config: Config) -> Config:
    """Make the paths that other nodes and other working directories will see absolute, in place.

    Examples that ship with ftslurm are named `example:train_ddp.py` in conf/job/, so that they are found both in a
    checkout and in an installed wheel.
    """
    if config.job.script is not None:
        script = config.job.script
        if script.startswith("example:"):
            config.job.script = str(shipped("examples") / script.removeprefix("example:"))
        else:
            config.job.script = os.path.abspath(os.path.expanduser(script))  # noqa: PTH100, PTH111 links stay links
    config.run.root = os.path.abspath(os.path.expanduser(config.run.root))  # noqa: PTH100, PTH111
    for section, key in ((config.run, "dir"), (config.checkpoint, "dir")):
        value = getattr(section, key)
        if value is not None:
            setattr(section, key, os.path.abspath(os.path.expanduser(value)))  # noqa: PTH100, PTH111
    return config


def shipped(folder: str) -> Path:
    """Where conf/, examples/ or sbatch/ lies: inside the package in a wheel, beside it in a checkout."""
    inside = Path(__file__).parent / folder
    return inside if inside.is_dir() else Path(__file__).parent.parent / folder


def nodes_needed(config: Config) -> int:
    """Nodes of the allocation: the groups', packed groups.per_node to a node, and the spare ones.

    Groups that share a node share all their nodes: a group has the same slot on each of its nodes.
    """
    groups = config.groups
    return groups.nodes * -(-groups.count // groups.per_node) + config.cluster.spare_nodes


def describe_job(config: Config) -> str:
    """What is run, on one line, for people: `train.py --steps 100`."""
    what = [config.job.script] if config.job.script else ["-m", str(config.job.module)]
    return shlex.join([str(w) for w in what] + script_arguments(config.job.args))


def user_name() -> str:
    """Who runs this; the journal's `by` where there is no login name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
