"""Every setting: its name, type, default and meaning. What values make no sense is in checks.py.

The dataclasses are Hydra's schema (so they are mutable: OmegaConf cannot fill frozen ones); after `check` nobody
changes them. `conf/<section>/<preset>.yaml` holds only what differs from the defaults here.
"""

from __future__ import annotations

import getpass
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """The Lighthouse. The defaults were chosen by measuring, see benchmarks/lighthouse_timing.py.

    A survivor stalls for about heartbeat_timeout_ms when another group dies without a word, because the stock
    Lighthouse learns of a death only by silence (5 s with torchft's default). torchft's heartbeats come every 100 ms
    from a Rust thread that needs no GIL. Our own (kind=ftslurm) is told by the controller, within milliseconds.

    Measured with 4 groups on 2 cores: after a kill -9 survivors stalled 1.07 s at 1000 ms and 5.15 s at torchft's
    defaults; with four busy loops beside the training the quorum never changed without cause in 200 steps, at 500,
    1000, 2000 and 5000 ms alike. 1000 leaves ten heartbeats to miss.
    """

    kind: str = "torchft"  # torchft: the stock Lighthouse; ftslurm: our own, told of deaths by the controller
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
    """The login name of whoever runs this, or the number where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
