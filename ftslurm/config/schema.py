"""Every setting: its name, type, default and meaning.

The dataclasses are the schema of conf/, of overrides and of a run's config.yaml. They are mutable because OmegaConf
cannot fill frozen ones; nothing changes them after `check`. `conf/<section>/<preset>.yaml` holds only what differs from
the defaults here. The limits of each setting are in value_limits.py, the rules for several settings in validate.py.

The unit is part of a name: `_s` seconds, `_ms` milliseconds, `_mb` MiB.
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

from ftslurm.config.store_url import is_url, plain

MOST_GROUPS = 10_000
AUTO = "auto"  # a value that the program finds by itself
EACH = "each"  # standby.count: one for each group
MISSING: Any = "???"  # OmegaConf's mark of a value that must be given


def _default_events() -> list[str]:
    from ftslurm.protocol.occurrences import DEFAULT_EVENTS  # not at the top: guards and keepers need no journal

    return list(DEFAULT_EVENTS)


@dataclass
class RunConfig:
    """The run and its directory."""

    name: str = "${job.name}"  # part of the run's id, of its directory's name and of the Slurm job's name
    root: str = "runs"  # the folder for run directories; on Slurm all nodes must share it
    dir: str | None = None  # the directory of this run; default: ROOT/NAME-TIME-RANDOM
    # Users and groups, by name or number, that may own or write the folders above the run directory, as [lab, prof].
    # They could replace the run directory. Root and you are always trusted; a folder that everybody may write never is.
    trust: list[str] = field(default_factory=list)
    # A Unix group that may read the run (status, logs, report): lab; lab:steer may also stop, scale, restart, ... it.
    share: str | None = None
    parent: str | None = None  # the directory of the run that this one resumes; set by `ftslurm resume`
    sweep: str | None = None  # the sweep that the run belongs to, for `ftslurm list`; -m sets it: ddp-TIME-RANDOM


@dataclass
class JobConfig:
    """The training script."""

    name: str = "script"  # up to 64 letters, digits, dots, dashes and underscores
    script: str | None = None  # path of the script; exactly one of script and module is set
    module: str | None = None  # module to run, as `python -m` does
    # Arguments of the script: a list, or a mapping that becomes --key value (true: --key alone; null and false: left
    # out; a mapping inside: --key.inner value). {REPLICA_GROUP_ID}, {NUM_REPLICA_GROUPS}, {RANK} and any other variable
    # that ftslurm sets for the worker are replaced by their values; other braces stay. Hydra and the shell each remove
    # a pair of quotes: 'job.args.replica_id="{REPLICA_GROUP_ID}"'.
    args: Any = None
    env: dict[str, str] = field(default_factory=dict)  # environment variables of every worker
    # Names of variables, as WANDB_API_KEY, that workers get from the environment in which the run is started. Their
    # values are written to no file, and only workers get them.
    secrets: list[str] = field(default_factory=list)
    # The Python interpreter, or a list that ends with one, as [apptainer, exec, img.sif, python]. Default: the one that
    # runs ftslurm; in a container (cluster.container_image) python3.
    python: Any = None
    # true: the virtual environment or conda environment of job.python is archived beside the runs, and each node
    # unpacks it once, into SLURM_TMPDIR, TMPDIR or /tmp; workers import from that copy. A path: into this folder of the
    # nodes. For shared file systems on which many small files are slow. What the environment only points to (its base
    # interpreter, editable installs) stays where it is.
    stage_python: Any = False
    staged_python: str | None = None  # the archive, and the name of the interpreter in it; set when a run is submitted
    # How the code is kept, so that an attempt hours later runs what the first one ran. copy: when the run is submitted,
    # the git tree of the script or module (files that git keeps, and new ones that it does not ignore), without git its
    # package or folder, is copied into the run directory, and every attempt runs the copy. hash: the files stay where
    # they are and are compared. auto: copy, or hash where that cannot be. none: attempts run what the files contain.
    snapshot: str = "auto"
    # Files and folders that are copied too, as [vendor, "*.bin"], although git ignores them or they are large.
    snapshot_include: list[str] = field(default_factory=list)
    # Those that are not copied, as keys and passwords (.env, *.pem, id_rsa) never are. What is not copied is a link to
    # the original.
    snapshot_exclude: list[str] = field(default_factory=list)
    snapshot_max_mb: int = 100  # of all copied files together
    on_code_change: str = "refuse"  # refuse or warn: what an attempt does if a file that was hashed has changed
    total_steps: int | None = None  # steps the script takes; for the progress bar, and drills at a fraction of the run


@dataclass
class GroupsConfig:
    """The replica groups. Their ids are 0 to count - 1."""

    count: int = 2  # replica groups
    min: int = 1  # groups that must remain or have finished (lighthouse.kind=torchft: remain); with fewer the run fails
    max: int | None = None  # most groups that `ftslurm scale` may ask for; default: count
    nodes: int = 1  # nodes of each group
    workers: int = 1  # workers (ranks) on each node of a group
    per_node: int = 1  # groups that share a node; each has GPUs of its own
    gpus: int | None = None  # GPUs on each node of a group; default: workers if the cluster has so many, else 0
    cpus_per_worker: int = 1  # CPUs of each worker; also its OMP_NUM_THREADS, unless job.env sets that
    # The CPUs to which each worker is bound. auto: those of its GPU's NUMA node; without GPUs the workers of a node are
    # divided among its NUMA nodes, if that is even. cores: a part of these CPUs that no other worker of the run has.
    # none: all of the job's. A --cpu-bind in cluster.srun turns auto off.
    bind: str = "auto"
    mem: str | None = None  # memory of a group on each of its nodes, as 64G; default: that of the partition
    # How many groups have which role, by id in this order: {server: 1, worker: 2} makes group 0 the server. Only
    # without a Lighthouse (lighthouse=none); with one all groups are alike.
    roles: dict[str, int] = field(default_factory=dict)
    # Roles whose groups serve the others. They are not counted in `min`, and are stopped when all others have finished.
    # The run fails if one of them is given up.
    serve: list[str] = field(default_factory=list)


@dataclass
class Range:
    """Groups that get their nodes in another way than the rest. What is not set is as in the cluster section."""

    groups: str = MISSING  # 2, 2-5, or 2- for all from 2 on
    partition: str | None = None  # as cluster.partition
    account: str | None = None  # as cluster.account
    qos: str | None = None  # as cluster.qos
    time: str | None = None  # as cluster.time
    constraint: str | None = None  # as cluster.constraint
    exclude: str | None = None  # as cluster.exclude
    nodelist: str | None = None  # as cluster.nodelist
    reservation: str | None = None  # as cluster.reservation
    sbatch: dict[str, Any] = field(default_factory=dict)  # as cluster.sbatch


@dataclass
class ClusterConfig:
    """Where the run trains, and what Slurm is asked for."""

    kind: str = "auto"  # auto (Slurm where it is installed, else local), local (this machine) or slurm
    # steps: one Slurm job, with one Slurm step for each group. array: one Slurm job for each group; they come and go.
    mode: str = "steps"
    partition: str | None = None  # sbatch --partition; default: Slurm's, also of the next seven
    account: str | None = None  # sbatch --account
    qos: str | None = None  # sbatch --qos
    time: str | None = None  # time limit in Slurm's notation, as 1-12:00:00
    constraint: str | None = None  # features that the nodes must have (sbatch --constraint)
    exclude: str | None = None  # nodes that are not used, as n[1-4]
    # A file in which runs note the nodes that they have found broken. The runs that have this setting avoid them for
    # seven days, if there are others. A line that a person adds, as n7 or n[1-4] # why, counts until it is removed.
    # The page "causes" has more.
    exclude_file: str | None = None
    nodelist: str | None = None  # nodes that must be among those of the job
    reservation: str | None = None  # sbatch --reservation
    requeue: bool = True  # after a time limit or preemption the run resumes from a checkpoint in its next job
    replace: bool = True  # ask for another job when a node is lost and no spare is left, or a pilot cannot be requeued
    poll_s: float = 15.0  # how often Slurm is asked about the run's jobs, if there are others than the controller's
    # Array mode: ask for the next job of a group so long before its time limit (at most half the limit). Groups then
    # move one by one. Steps mode has signal_s instead.
    handover_s: float = 900.0
    ranges: list[Range] = field(default_factory=list)  # array mode: [{groups: 2-7, partition: cheap, time: "4:00:00"}]
    pilots: str | None = None  # array mode: id of the array whose tasks are the pilots; sbatch/array.sbatch sets it
    spare_nodes: int = 0  # nodes beyond what the groups need; a group whose node is lost moves to one
    signal_s: int = 120  # so long before the time limit the run saves a checkpoint and ends its job
    # The most leaf switches of a job for groups, and how long to wait for them, as 1@10:00 (sbatch --switches, for
    # topology/tree).
    switches: str | None = None
    segment: int | None = None  # how many nodes at a time lie in one block (sbatch --segment, for topology/block)
    setup: list[str] = field(default_factory=list)  # shell lines before the controller starts, as `module load cuda`
    sbatch: dict[str, Any] = field(
        default_factory=dict
    )  # further options: {mail-type: END}; gpus-per-node: false if GPUs are no GRES
    srun: list[str] = field(default_factory=list)  # further arguments of the srun of every group
    # The network of the run: ib0, or several names in order, as [ib0,eth0], of which each node takes the first that it
    # has. Nodes announce the address of the interface, listen there alone, and Gloo and NCCL use it. auto: that of the
    # node's name, or if this is no use to others, as 127.0.1.1, that of the route to the controller. null: names, and
    # Gloo's and NCCL's own choice. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are kept if they are set (job.env).
    interface: Any = "auto"
    # The image in which the workers run, where Slurm has pyxis: a path, as /images/train.sqsh, or REGISTRY#IMAGE:TAG.
    # It needs Python, torch and torchft; ftslurm is mounted into it. job.python is then the image's (default: python3).
    container_image: str | None = None
    # Further folders of the node for the container, as /data or /data/set1:/data:ro. The run directory, the working
    # directory, the script's folder and checkpoint.dir are mounted anyway, at the same path.
    container_mounts: list[str] = field(default_factory=list)
    container_workdir: str | None = None  # where the workers begin in the container; default: as outside
    # job: the controller runs in a Slurm job (steps mode: the run's; array mode: one of its own with one CPU).
    # here: it runs below this process (steps mode: inside an allocation that you hold).
    controller: str = "job"
    controller_sbatch: dict[str, Any] = field(default_factory=dict)  # array mode: sbatch options of its own job


@dataclass
class LighthouseConfig:
    """The Lighthouse. The defaults were measured: benchmarks/lighthouse_timing.py, benchmarks/false_evictions.py.

    The controller tells our own Lighthouse of each death within milliseconds, so heartbeat_timeout_ms matters only when
    a node vanishes: then the quorum is broken, and the next ones are formed without the group, until it is heard again.
    A group whose machine stalls for less (file system, swapping, a moved VM) stays in the quorum. To drop it would cost
    more, because a quorum without it builds all process groups anew, and the next one with it does so again.

    The stock Lighthouse learns of each death by silence, and survivors stall for that long: 1.07 s at 1000 ms, 5.15 s
    at 5000 ms (4 groups on 2 cores). Hence the 1000 ms of conf/lighthouse/torchft.yaml: ten of torchft's heartbeats,
    which a thread that needs no GIL sends every 100 ms.

    Neither has dropped a healthy group in the benchmarks because the machine was busy.
    """

    # ftslurm: our own. torchft: the stock one. none: no quorum, each group is restarted by itself (a parameter server
    # and its workers, or groups that have nothing in common).
    kind: str = "ftslurm"
    port: int = 0  # 0: any free port
    join_timeout_ms: int = 10000  # how long a quorum waits for a healthy group that is not ready
    heartbeat_timeout_ms: int = 3000  # a group that is silent for so long is left out of quorums until it is heard
    quorum_tick_ms: int = 20  # how often the Lighthouse looks for a quorum; at 20 ms its CPU load is negligible
    # true: no quorum of groups that lack the training's state, or are ahead of it. false: any quorum, as torchft's own
    # Lighthouse, for scripts whose steps do not rise one by one; a restarted group still never begins anew.
    lineage: bool = True


@dataclass
class TorchftConfig:
    """torchft's managers: time-outs, in whole seconds because torchft reads them as integers, and the process group."""

    timeout_s: int = 60  # one collective, commit vote, or fetch while healing (TORCHFT_TIMEOUT_SEC)
    quorum_timeout_s: int = 60  # one quorum; longer than the longest step, with LocalSGD than the time between syncs
    connect_timeout_s: int = 60  # connecting to the Lighthouse or a manager (TORCHFT_CONNECT_TIMEOUT_SEC)
    quorum_retries: int = 200  # at least 1: else a Lighthouse that dies during a quorum ends every group
    # What averages the tensors between groups: gloo (through the CPU and TCP), nccl (from GPU to GPU), baby-nccl (the
    # same in a process of its own, which can be killed if NCCL hangs). auto: nccl if groups have GPUs, else gloo. The
    # script makes it: it gets the value in FTSLURM_PROCESS_GROUP, which the examples follow.
    process_group: str = AUTO
    # How a group that comes back gets the state from a live one: http (several streams, each after a proof that it is
    # of this run) or process_group (torchft's PGTransport: what averages the tensors, with NCCL from GPU to GPU). A
    # transport that the script gives its Manager stays.
    transport: str = "http"


@dataclass
class RestartConfig:
    """When a group that failed is launched again."""

    policy: str = "on_failure"  # on_failure or never
    max_per_group: int = 5  # restarts of one group within window_s; after one more failure it is given up
    window_s: float = 3600.0  # older failures do not count
    backoff_s: float = 1.0  # wait before the second restart; doubles with each later one (the first has none)
    backoff_max_s: float = 60.0  # the longest wait
    # What to do when all groups are down and ftslurm.checkpoint has saved no complete checkpoint. fail: end the run.
    # checkpoint: start all groups, because the script resumes from a format of its own in checkpoint.dir; the run still
    # fails if that folder is empty.
    on_state_loss: str = "fail"


@dataclass
class HealthConfig:
    """Time limits after which something counts as lost, hung or too slow."""

    heartbeat_s: float = 1.0  # how often controller and guards send a heartbeat; two missing ones set a group aside
    lost_after_s: float = 10.0  # a node that is silent for so long, and that no probe reaches, is lost
    orphan_after_s: float = 60.0  # a worker that hears nothing from its controller for so long ends itself
    start_timeout_s: float = 600.0  # from launch until the script runs in every worker of the group
    join_timeout_s: float = 1800.0  # from then to the first committed step, while others commit; 0: no limit
    # Without a step of any group so long after all scripts run, a warning shows what each rank does and has printed; a
    # second one comes after twice the time. Nothing is ended. 0: off.
    first_step_s: float = 120.0
    wait_timeout_s: float = 0.0  # a group that waits so long for a node is given up; 0: no limit
    # A group that is behind the others and has not moved for so long is hung and launched again; 0: off. auto: learnt
    # from the steps of this run. A number must be longer than the longest pause of a single group (evaluation, a
    # checkpoint), and than a heal.
    hang_after_s: Any = AUTO
    hang_least_s: float = 300.0  # auto is at least this inside a step, twice that between two, where groups evaluate
    # Commands that run one after the other on each node before a group or a standby is placed there, and again after a
    # failure there that was not the script's: [[ftslurm-preflight]], [[/opt/site/check, --quick]]. A node on which one
    # ends with another exit code than 0 is left out. The page "preflight" has more.
    preflight: list[Any] = field(default_factory=list)
    preflight_timeout_s: float = 120.0  # for all of them on one node; then they are killed, and the node has failed


@dataclass
class StandbyConfig:
    """Warm standbys: steps that have imported everything and wait to become the next attempt of a failed group."""

    # each: one beside each group, on the group's own nodes. auto: the same, where they have memory to spare once the
    # group trains. A number: so many for the whole run, on spare nodes first (cluster.spare_nodes), then beside groups.
    count: Any = AUTO
    imports: list[str] = field(default_factory=list)  # further modules to import early, as transformers
    cuda: bool = False  # also create the CUDA context, which takes some hundred MB of GPU memory


@dataclass
class CheckpointConfig:
    """Checkpoints. Scripts get these values in FTSLURM_CHECKPOINT_* variables; ftslurm.checkpoint follows them."""

    # A folder that all nodes share, or an object store that fsspec knows, as s3://bucket/folder (`pip install
    # 'ftslurm[s3]'`). Default: checkpoints/ in the run directory.
    dir: str | None = None
    every: int = 0  # steps between two checkpoints; 0: none
    keep: int = 3  # newest checkpoints to keep; 0: all


@dataclass
class LogsConfig:
    """The logs of the run: rank-N.log, step.log, lighthouse.log, controller.log."""

    # Size limit of each log in MiB; 0: none. A longer log keeps its first 256 KiB and its last 8 MiB (a quarter of the
    # limit if that is less), with a line between them that tells how much was dropped. Sizes are checked once a second.
    max_mb: int = 1024


@dataclass
class StopConfig:
    """How the run is stopped."""

    grace_s: float = 10.0  # between SIGTERM to the scripts and SIGKILL


@dataclass
class HooksConfig:
    """Commands and classes that are told of the run's events, by a process beside the controller."""

    # Commands that get each chosen event as JSON on their standard input: [[./notify.sh, --chat]]. A command is a list
    # of arguments, or a mapping, for events of its own: {command: [./mail.sh], events: [run_finished]}.
    on_event: list[Any] = field(default_factory=list)
    # The events for on_event: those of people's interest, listed in the page "hooks", or any event of the journal.
    events: list[str] = field(default_factory=_default_events)
    callbacks: list[str] = field(default_factory=list)  # subclasses of ftslurm.RunCallback: [my_package.MyCallback]
    timeout_s: float = 10.0  # a command or callback that takes longer for one event is killed


@dataclass
class MetricsConfig:
    """Metrics for Prometheus; off unless one of the first two is set."""

    textfile: str | None = None  # a file *.prom in the folder of node_exporter's textfile collector
    # Serve them on the controller's node: HOST:PORT on loopback, as 127.0.0.1:9400 (all users of the node can read
    # it), or unix:PATH, a socket for you alone; unix: is a socket in the run directory.
    listen: str | None = None
    every_s: float = 15.0  # how often the textfile is written


@dataclass
class Fault:
    """One fault of a drill."""

    kind: str = "kill"  # kill, term, stop, exit, oom, hang (one rank); node, cancel (its Slurm step); lighthouse
    group: int = 0  # the fault happens when this group reaches the step
    at: float = MISSING  # a step (1 or more), or a fraction of job.total_steps (below 1)
    rank: int = 0  # of the group; for kind=node its node is meant


@dataclass
class FaultsConfig:
    """Drills: real faults on purpose, from a plan, at random, or both."""

    plan: list[Fault] = field(default_factory=list)  # [{kind: kill, group: 1, at: 50}]: one fault each
    mean_s: float = 0.0  # mean time between two random faults, exponentially distributed; 0: none
    kinds: list[str] = field(default_factory=lambda: ["kill"])  # kinds of random faults, equally likely
    seed: int = 0  # the same seed gives the same times, kinds, groups and ranks
    count: int = 0  # most random faults; 0: no limit


@dataclass
class Config:
    """The whole configuration of a run. Each field is a section; `conf/<section>/` holds its presets."""

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
    hooks: HooksConfig = field(default_factory=HooksConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    follow: bool | None = None  # show the run until it ends; default: on a terminal, and always for a local run


def members(text: str) -> range:
    """Return the group ids of a range: "2", "2-5", or "2-" for all from 2 on.

    Raises:
        ValueError: it is not a range.
    """
    if not re.fullmatch("[0-9]{1,9}(-([0-9]{1,9})?)?", str(text)):
        raise ValueError(f"not a range of groups: {text!r:.60}")
    first, dash, last = str(text).partition("-")
    end = int(last) if last else MOST_GROUPS - 1 if dash else int(first)
    if end >= MOST_GROUPS:
        raise ValueError(f"there is no group {end}")
    return range(int(first), end + 1)


def most_groups(config: Config) -> int:
    """Return the most groups that the run may have; their ids are below that."""
    return config.groups.count if config.groups.max is None else config.groups.max


def binds_itself(config: Config) -> bool:
    """Return whether the user's own arguments of srun bind the workers to CPUs."""
    return any(word.partition("=")[0] in ("--cpu-bind", "--cpu_bind") for word in config.cluster.srun)


def slurm_knows_gpus(config: Config) -> bool:
    """Return whether Slurm is asked for GPUs; no (cluster.sbatch.gpus-per-node=false): the nodes have them anyway."""
    sbatch = config.cluster.sbatch
    return False not in (sbatch.get("gpus-per-node"), sbatch.get("gpus_per_node"))


def script_arguments(args: list[Any] | dict[str, Any] | None) -> list[str]:
    """Return the script's arguments: a list as it is; {lr: 0.1, amp: true, note: null} becomes --lr 0.1 --amp.

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
    """Return the command that runs Python in the workers, with its prefix."""
    if job.python is None:
        return [default]
    return [job.python] if isinstance(job.python, str) else [str(part) for part in job.python]


def absolute(config: Config) -> Config:
    """Make the paths that other nodes and other working directories will see absolute, in place.

    Examples that ship with ftslurm are named `example:train_ddp.py` in conf/job/, so that they are found both in a
    checkout and in an installed wheel.
    """
    if config.job.script is not None and config.job.script.startswith("example:"):
        config.job.script = str(shipped("examples") / config.job.script.removeprefix("example:"))
    if (config.cluster.container_image or "").startswith(("./", "../", "~")):
        config.cluster.container_image = os.path.abspath(os.path.expanduser(config.cluster.container_image or ""))  # noqa: PTH100, PTH111
    for section, key in (
        *((config.job, "script"), (config.run, "root"), (config.run, "dir")),
        *((config.checkpoint, "dir"), (config.metrics, "textfile"), (config.cluster, "exclude_file")),
    ):
        value = getattr(section, key)
        if section is config.checkpoint and value and is_url(value := plain(value)):
            config.checkpoint.dir = value.rstrip("/")
        elif value is not None and not is_url(value):
            setattr(section, key, os.path.abspath(os.path.expanduser(value)))  # noqa: PTH100, PTH111 links stay links
    return config


def shipped(folder: str) -> Path:
    """Return the path of conf/, docs/, examples/ or sbatch/: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parents[1]
    return package / folder if (package / folder).is_dir() else package.parent / folder


def nodes_needed(config: Config) -> int:
    """Return the nodes of the allocation: those of the groups, groups.per_node to a node, and the spare ones.

    Groups that share a node share all their nodes: a group has the same slot on each of its nodes. On Slurm standbys
    add none (they use spare nodes or those of groups), and groups that are added later get jobs of their own. On this
    machine, where a node is only a name, each has nodes of its own.
    """
    groups, local = config.groups, config.cluster.kind == "local"
    standbys = fixed_standbys(config) if local else 0
    count = most_groups(config) if local else groups.count
    return groups.nodes * (-(-count // groups.per_node) + standbys) + config.cluster.spare_nodes


def fixed_standbys(config: Config) -> int:
    """Return how many standbys the run has from its start, for any group: 0 if each group may have one of its own."""
    return 0 if config.standby.count in (AUTO, EACH) else int(config.standby.count)


def most_standbys(config: Config) -> int:
    """Return how many standbys may run at once."""
    return most_groups(config) if standby_each(config) else fixed_standbys(config)


def standby_each(config: Config) -> bool:
    """Return whether each group may have a standby of its own. auto leaves it out where none could take over."""
    auto = config.standby.count == AUTO and config.restart.policy != "never" and config.cluster.mode != "array"
    return auto or config.standby.count == EACH


@dataclass(frozen=True)
class Role:
    """The role of a group: it is number `index` of the `count` groups with that role."""

    name: str
    index: int
    count: int


def role_of(roles: Mapping[str, int], group: int) -> Role | None:
    """Return the role of a group, or None if groups have no roles; roles are given to group ids in order."""
    first = 0
    for name, count in roles.items():
        if group < first + count:
            return Role(name, group - first, count)
        first += count
    return None


def describe_job(config: Config) -> str:
    """Return the script and its arguments on one line: `train.py --steps 100`."""
    what = [config.job.script] if config.job.script else ["-m", str(config.job.module)]
    return shlex.join([str(w) for w in what] + script_arguments(config.job.args))


def user_name() -> str:
    """Return the user's login name, or the number if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
