"""Every setting: its name, type, default and meaning. What values make no sense is in checks.py.

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

MOST_GROUPS = 10_000
MISSING: Any = "???"  # OmegaConf's mark of a value that must be given


@dataclass
class RunConfig:
    name: str = "${job.name}"  # part of the run id, of the run directory's name and of the Slurm job's name
    root: str = "runs"  # where run directories lie; on Slurm a folder that all nodes share
    dir: str | None = None  # this run's directory; default: root/name-time-random
    # Users and groups, by name or number, who may own or write the folders above the run directory: [lab, prof]. They
    # could put a run directory of their own in its place. Root and you are trusted, everybody is never.
    trust: list[str] = field(default_factory=list)


@dataclass
class JobConfig:
    name: str = "script"  # letters, digits, dot, dash and underscore
    script: str | None = None  # path of the training script, seen from here; or
    module: str | None = None  # a module to run as `python -m` would
    # A list, or a mapping that becomes --key value (true: --key alone; null or false: left out; a mapping inside it
    # --key.inner value). In each {REPLICA_GROUP_ID}, {NUM_REPLICA_GROUPS}, {RANK} or whatever else ftslurm sets in the
    # worker's environment is replaced by its value there; other braces stay. Hydra and the shell want two pairs of
    # quotes: 'job.args.replica_id="{REPLICA_GROUP_ID}"'.
    args: Any = None
    env: dict[str, str] = field(default_factory=dict)  # set in every worker before torch is imported
    # Names of variables that the workers are given from the environment in which the run is started, as WANDB_API_KEY:
    # their values are written down nowhere, and nothing but the workers gets them.
    secrets: list[str] = field(default_factory=list)
    # The interpreter; a list if it has a prefix, as [apptainer, exec, img.sif, python]. Default: this one.
    python: Any = None
    # Steps the script will take, if known: for the progress bar, and for drills at a fraction of the run.
    total_steps: int | None = None


@dataclass
class GroupsConfig:
    count: int = 2  # replica groups; their ids are 0..count-1
    min: int = 1  # the fewest groups that may step; with fewer the run fails
    max: int | None = None  # the most that `ftslurm scale` may ask for; default: count
    nodes: int = 1  # nodes of one group
    workers: int = 1  # workers (ranks) of a group on each of its nodes
    per_node: int = 1  # groups that may share one node; their GPUs are disjoint
    gpus: int | None = None  # GPUs of a group on each of its nodes; default: workers if the cluster has GPUs, else 0
    cpus_per_worker: int = 1  # CPUs asked for per worker; also OMP_NUM_THREADS, unless job.env sets that
    mem: str | None = None  # memory of one group on one node, in Slurm's notation (64G); default: the partition's
    # Without a Lighthouse (lighthouse=none) groups may differ: {server: 1, worker: 2} makes group 0 a server.
    roles: dict[str, int] = field(default_factory=dict)
    # The roles that only serve the others. They need not end: when all others have finished, they are stopped. They are
    # not counted in `min`; the run fails if one of them is given up.
    serve: list[str] = field(default_factory=list)


@dataclass
class Range:
    """Groups that get their nodes in another way than the rest: another partition, account, time limit."""

    groups: str = MISSING  # 2, 2-5, or 2- for all from 2 on
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nodelist: str | None = None
    reservation: str | None = None
    sbatch: dict[str, Any] = field(default_factory=dict)


@dataclass
class ClusterConfig:
    kind: str = "auto"  # auto (Slurm if it answers, else local), local (this machine) or slurm
    # steps: one allocation, one Slurm step per group; array: one job of an array per group, which come and go.
    mode: str = "steps"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # time limit in Slurm's notation (1-12:00:00)
    constraint: str | None = None
    exclude: str | None = None
    nodelist: str | None = None
    reservation: str | None = None
    requeue: bool = True  # the run outlives its job (time limit, preemption): it goes on in the next from a checkpoint
    # A lost node for which there is no spare, a spare that was used up, or a pilot that cannot be requeued: ask for
    # another job in its place.
    replace: bool = True
    poll_s: float = 15.0  # how often Slurm is asked about the jobs of the run, if there are any beside the controller's
    # Array mode: so long before a pilot's time limit (or half of it) its successor is asked for, and then the groups
    # move one by one. Steps mode has cluster.signal_s.
    handover_s: float = 900.0
    # Array mode: groups that get their nodes otherwise, as [{groups: 2-7, partition: cheap, time: "4:00:00"}].
    ranges: list[Range] = field(default_factory=list)
    pilots: str | None = None  # array mode: the job array whose tasks are the pilots; set by sbatch/array.sbatch
    spare_nodes: int = 0  # nodes asked for beyond what the groups need; a group whose node is lost moves there
    signal_s: int = 120  # so long before the time limit the run saves a checkpoint and goes on in another job
    setup: list[str] = field(default_factory=list)  # shell lines before the controller starts, as `module load cuda`
    sbatch: dict[str, Any] = field(default_factory=dict)  # further sbatch options: {mail-type: END, exclusive: true}
    srun: list[str] = field(default_factory=list)  # further arguments of every group's srun
    # job: in the job's batch process (array mode: in a job of its own, of one CPU); here: in this process (steps mode:
    # inside an allocation you hold).
    controller: str = "job"
    controller_sbatch: dict[str, Any] = field(
        default_factory=dict
    )  # array mode: sbatch options of the controller's job


@dataclass
class LighthouseConfig:
    """The Lighthouse. The defaults were chosen by measuring, see benchmarks/lighthouse_timing.py, false_evictions.py.

    Our own is told of a death by the controller, within milliseconds, so survivors never wait for silence to tell,
    and heartbeat_timeout_ms matters only when a node vanishes without a word. The step under way then fails by
    torchft's time-outs anyway, which are longer. So it is torchft's own 5 s: a group whose machine stalls for less (a
    file system that hangs, swapping, a VM that is moved) is waited for, where it would else be dropped and, because a
    quorum without it builds all process groups anew and one with it does so again, cost more than it had lost.

    The stock Lighthouse learns of every death by silence alone, and survivors stall for that long: 1.07 s at 1000 ms,
    5.15 s at 5000 ms (4 groups on 2 cores). Hence the 1000 ms of conf/lighthouse/torchft.yaml; torchft's heartbeats
    come every 100 ms from a thread that needs no GIL, so ten of them may be missed.

    Neither has ever dropped a healthy group because the machine was busy: see false_evictions.py.
    """

    # ftslurm: our own, told of deaths by the controller; torchft: the stock one; none: groups without a quorum, each
    # brought back whatever the others do (a parameter server and its workers, or runs that have nothing in common).
    kind: str = "ftslurm"
    port: int = 0  # 0: any free port
    join_timeout_ms: int = 10000  # how long a quorum waits for a healthy group that is not ready; short ones thrash
    heartbeat_timeout_ms: int = 5000  # silence after which a group counts as dead
    quorum_tick_ms: int = (
        20  # how often the Lighthouse looks; at 20 groups of heartbeats it still costs no CPU to speak of
    )
    # Our own gives no quorum to groups none of which has the training's state, and to no group at a step beyond it.
    # false: any group at any step gets one, as with torchft's, for scripts whose steps do not rise one by one. Workers
    # and the controller still see to it that a group that comes back does not begin anew.
    lineage: bool = True


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
    # All groups down at once, and no complete checkpoint of ftslurm.checkpoint's: fail, or checkpoint (the script saves
    # in a way of its own, and resumes from what it finds in checkpoint.dir; fails if there is nothing).
    on_state_loss: str = "fail"


@dataclass
class HealthConfig:
    """What counts as lost, hung or too slow. Every phase of a group's way back has its limit here."""

    heartbeat_s: float = 2.0  # how often the controller and the workers say that they are there
    lost_after_s: float = 10.0  # a node of which nothing is heard for this long, and that no probe reaches, is lost
    orphan_after_s: float = 60.0  # a worker that hears nothing from its controller for this long ends itself
    start_timeout_s: float = 600.0  # from launch until every worker is ready and the script runs
    join_timeout_s: float = 1800.0  # from then to the first committed step, while others commit; 0: no limit
    # No step of any group so long after all scripts run: people are told what the ranks do and have printed last, and
    # again after twice the time. Nothing is ended. 0: off.
    first_step_s: float = 120.0
    wait_timeout_s: float = 0.0  # how long a group may wait for a node before it is given up; 0: as long as the run
    # A group behind the others that has not moved for this long is hung; 0: off. Longer than the longest pause that
    # one group makes alone (evaluation, a checkpoint), and than torchft heals.
    hang_after_s: float = 0.0


@dataclass
class StandbyConfig:
    """Warm standbys: steps that have imported everything and wait to become the next attempt of a group that fails."""

    count: int = 0  # how many; on spare nodes first (cluster.spare_nodes), else beside the groups
    imports: list[str] = field(default_factory=list)  # further modules to import early, as transformers
    cuda: bool = False  # also create the CUDA context; takes some hundred MB of GPU memory while it waits


@dataclass
class CheckpointConfig:
    """Offered to scripts through the environment (FTSLURM_CHECKPOINT_*); ftslurm.checkpoint honours it for them."""

    dir: str | None = None  # default: checkpoints/ in the run directory
    every: int = 0  # steps between two checkpoints, for scripts that honour it; 0: none
    keep: int = 3  # the newest that are kept; 0: all


@dataclass
class LogsConfig:
    # No log of the run (rank-N.log, step.log, lighthouse.log, controller.log) grows beyond so many MiB: the first 256
    # KiB and the last 8 MiB (a quarter of the cap, if that is less) stay, and a line says how much was dropped between
    # them. 0: no cap. It is looked at once a second: what is written in between may exceed it.
    max_mb: int = 1024


@dataclass
class StopConfig:
    grace_s: float = 10.0  # between SIGTERM to the scripts and SIGKILL


@dataclass
class Fault:
    """One fault, when its group reaches a step."""

    kind: str = "kill"  # kill, term, stop, exit, oom, hang (one rank); node, cancel (its whole step); lighthouse
    group: int = 0
    at: float = MISSING  # a step (1 or more), or a fraction of job.total_steps (below 1)
    rank: int = 0


@dataclass
class FaultsConfig:
    """Drills: real faults, done on purpose. A plan of them, or a seeded stream of random ones, or both."""

    plan: list[Fault] = field(default_factory=list)
    mean_s: float = 0.0  # mean time between two random faults, exponentially distributed; 0: none
    kinds: list[str] = field(default_factory=lambda: ["kill"])  # of the random ones, equally likely
    seed: int = 0  # the same seed draws the same times, kinds, groups and ranks
    count: int = 0  # so many random ones at most; 0: as long as the run


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
    standby: StandbyConfig = field(default_factory=StandbyConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    follow: bool | None = None  # stay and show the run; default: yes on a terminal, and always for a local run


def members(text: str) -> range:
    """The group ids of a range: "2", "2-5", or "2-" for all from 2 on.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch("[0-9]{1,9}(-([0-9]{1,9})?)?", str(text)):
        raise ValueError(f"not a range of groups: {text!r:.60}")
    first, dash, last = str(text).partition("-")
    end = int(last) if last else MOST_GROUPS - 1 if dash else int(first)
    if end >= MOST_GROUPS:
        raise ValueError(f"there is no group {end}")
    return range(int(first), end + 1)


def most_groups(config: Config) -> int:
    """How many groups the run may come to have; their ids are below that."""
    return config.groups.count if config.groups.max is None else config.groups.max


def script_arguments(args: list[Any] | dict[str, Any] | None) -> list[str]:
    """The script's argument list: a list as it is; {lr: 0.1, amp: true, note: null} becomes --lr 0.1 --amp.

    A mapping inside a mapping, as {optimizer: {lr: 0.1}}, becomes --optimizer.lr 0.1.
    """
    if args is None or isinstance(args, list):
        return [str(a) for a in args or ()]
    out: list[str] = []
    for key, value in args.items():
        if value is None or value is False:
            continue
        if isinstance(value, dict):
            out += script_arguments({f"{key}.{inner}": of for inner, of in value.items()})
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
    package = Path(__file__).parents[1]
    return package / folder if (package / folder).is_dir() else package.parent / folder


def nodes_needed(config: Config) -> int:
    """Nodes of the allocation: the groups', packed groups.per_node to a node, and the spare ones.

    Groups that share a node share all their nodes: a group has the same slot on each of its nodes. On Slurm standbys
    add none, they take spare nodes or sit beside the groups, and a run that has become larger gets jobs for its new
    groups; on this machine, where a node is only a name, each has its own.
    """
    groups, local = config.groups, config.cluster.kind == "local"
    standbys = config.standby.count if local else 0
    count = most_groups(config) if local else groups.count
    return groups.nodes * (-(-count // groups.per_node) + standbys) + config.cluster.spare_nodes


@dataclass(frozen=True)
class Role:
    """What a group is among the others: number `index` of the `count` groups of that role."""

    name: str
    index: int
    count: int


def role_of(roles: Mapping[str, int], group: int) -> Role | None:
    """The role of a group: groups.roles is dealt to the group ids in order. None: groups have no roles."""
    first = 0
    for name, count in roles.items():
        if group < first + count:
            return Role(name, group - first, count)
        first += count
    return None


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
