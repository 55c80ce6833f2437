"""Every setting: its name, type, default and meaning.

The dataclasses are the schema of conf/, of overrides and of a run's config.yaml; nothing changes them after `check`.
`conf/<section>/<preset>.yaml` holds only what differs from the defaults here. What a setting may be stands beside it:
its type, `limited` and `path`. The rules for several settings are in validate.py. What follows from others is no
setting but a property of Config.

The unit is part of a name: `_s` seconds, `_ms` milliseconds, `_mb` MiB.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ftslurm.protocol.messages import Role
from ftslurm.security import programs

MOST_GROUPS = 1_000  # real runs reached 128; one node carries no more sruns
LEAST_SILENCE_S = 2.0  # a busy node is silent for less
MOST_STANDBYS = 10_000
AUTO: Final = "auto"  # a value that the program finds by itself
CONTROLLER: Final = "controller"  # cluster.ranges: its job
EACH: Final = "each"  # standby.count: one for each group
MISSING: Any = "???"  # OmegaConf's mark of a value that must be given


MAX_TIME = 10**9  # seconds: operating systems and libraries overflow beyond
_T = TypeVar("_T")
Option: TypeAlias = str | bool | None  # the value of an option of sbatch
Argument: TypeAlias = str | bool | list[str] | dict[str, Any] | None  # of the script, below its name


def limited(default: _T, least: float | None = None, most: float | None = None) -> _T:
    """Declare a setting with limits; None: no bound of its own."""
    return field(default=default, metadata={"least": least, "most": most})


def path(default: str | None = None) -> Any:
    """Declare a setting that is a path, which is made absolute: other nodes see it from other folders."""
    return field(default=default, metadata={"path": True})


@dataclass
class RunConfig:
    """The run and its directory."""

    # Part of the run's id, of its directory's name and of the Slurm job's name: up to 64 letters, digits, dots, dashes
    # and underscores.
    name: str = "script"
    root: str = path("runs")  # the folder for run directories; on Slurm all nodes must share it
    dir: str | None = path()  # the directory of this run; default: ROOT/NAME-TIME-RANDOM
    # Users and groups, by name or number, that may own or write the folders above the run directory, as [lab, prof].
    # They could replace the run directory. Root and you are always trusted; a folder that everybody may write never is.
    trust: list[str] = field(default_factory=list)
    # A Unix group that may read the run (status, logs, report): lab; lab:steer may also stop, scale, restart, ... it.
    share: str | None = None


@dataclass
class JobConfig:
    """The training script."""

    script: str | None = path()  # path of the script; exactly one of script and module is set
    module: str | None = None  # module to run, as `python -m` does
    # Arguments of the script, as they are typed: a list, or a mapping that becomes --key value (true: --key alone; null
    # and false: left out; a mapping inside: --key.inner value). {REPLICA_GROUP_ID}, {NUM_REPLICA_GROUPS}, {RANK} and
    # any other variable that ftslurm sets for the worker are replaced by their values; other braces stay, and so does
    # \{RANK}, without its backslash. A word of a list is changed by its place, as job.args.3=VALUE.
    args: list[str] | dict[str, Any] | None = None
    env: dict[str, str] = field(default_factory=dict)  # environment variables of every worker
    # Names of variables, as WANDB_API_KEY, that workers get from the environment in which the run is started. Their
    # values are written to no file, and only workers get them.
    secrets: list[str] = field(default_factory=list)
    # The Python interpreter, or a list that ends with one, as [apptainer, exec, img.sif, python]. Default: the one that
    # runs ftslurm; in a container (cluster.container_image) python3.
    python: str | list[str] | None = None
    # How the code is kept, so that an attempt hours later runs what the first one ran. copy: when the run is submitted,
    # the git tree of the script or module (files that git keeps, and new ones that it does not ignore), without git its
    # package or folder, is copied into the run directory, if it has no more than 100 MiB, and every attempt runs the
    # copy. none: attempts run what the files contain. auto: copy, or none where that cannot be.
    snapshot: Literal["auto", "copy", "none"] = "auto"
    # Files and folders that are not copied, as [vendor, "*.bin"]; keys and passwords (.env, *.pem, id_rsa) never are.
    # What is not copied is a link to the original.
    snapshot_exclude: list[str] = field(default_factory=list)
    # Steps the script takes; for the progress bar, and drills at a fraction of the run.
    total_steps: int | None = limited(None, 1)
    # How long a group may take from one quorum to the next: the longest step, with evaluation and checkpoints that one
    # group makes alone; with LocalSGD and DiLoCo the time between two syncs. It gives torchft's limit for a quorum, how
    # long a quorum waits for a late group, and when a group that commits nothing is launched again.
    longest_step_s: float = limited(60.0, 1, MAX_TIME)


@dataclass
class GroupsConfig:
    """The replica groups. Their ids are 0 to count - 1."""

    count: int = limited(2, 1, MOST_GROUPS)  # replica groups
    # Groups that must remain or have finished (lighthouse.kind=torchft: remain); with fewer the run fails.
    min: int = limited(1, 1)
    max: int | None = limited(None, most=MOST_GROUPS)  # most groups that `ftslurm scale` may ask for; default: count
    nodes: int = limited(1, 1, 10_000)  # nodes of each group
    workers: int = limited(1, 1, 1_000)  # workers (ranks) on each node of a group
    per_node: int = limited(1, 1, 1_000)  # groups that share a node; each has GPUs of its own
    # GPUs on each node of a group; default: workers if the nodes have so many, 0 if they have none.
    gpus: int | None = limited(None, 0)
    cpus_per_worker: int = limited(1, 1)  # CPUs of each worker; also its OMP_NUM_THREADS, unless job.env sets that
    # auto: each worker is bound to the CPUs near its GPU, as far as the job has them. none: it may use all of its job.
    # A --cpu-bind in cluster.srun turns auto off.
    bind: Literal["auto", "none"] = "auto"
    mem: str | None = None  # memory of a group on each of its nodes, as 64G; default: that of the partition
    # How many groups have which role, by id in this order: {server: 1, worker: 2} makes group 0 the server. Only
    # without a Lighthouse (lighthouse=none); with one all groups are alike.
    roles: dict[str, int] = field(default_factory=dict)
    # Roles whose groups serve the others. They are not counted in `min`, and are stopped when all others have finished.
    # The run fails if one of them is given up.
    serve: list[str] = field(default_factory=list)


@dataclass
class Range:
    """Jobs that get their nodes in another way than the rest. What is not set is as in the cluster section."""

    groups: str = MISSING  # 2, 2-5, or 2- for all from 2 on; controller: its job, which has one CPU and no group
    partition: str | None = None  # as cluster.partition
    account: str | None = None  # as cluster.account
    time: str | None = None  # as cluster.time
    sbatch: dict[str, Option] = field(default_factory=dict)  # as cluster.sbatch


# Kinds of clusters by the jobs that have the run's nodes (see Config): this is all that the core knows of a kind.
ONE_JOB, JOB_PER_GROUP = {"slurm"}, {"array"}


@dataclass
class ClusterConfig:
    """Where the run trains, and what Slurm is asked for."""

    # local: this machine. slurm: one Slurm job, with one step for each group. array: one Slurm job for each group; they
    # come and go. auto: slurm where it is installed, else local.
    kind: Literal["auto", "local", "slurm", "array"] = "auto"
    partition: str | None = None  # sbatch --partition; default: Slurm's, also of the next two
    account: str | None = None  # sbatch --account
    time: str | None = None  # time limit in Slurm's notation, as 1-12:00:00
    # A file in which runs note the nodes that they have found broken. The runs that have this setting avoid them for
    # seven days, if there are others. A line that a person adds, as n7 or n[1-4] # why, counts until it is removed.
    # The page "causes" has more.
    exclude_file: str | None = path()
    # After a time limit or preemption the run resumes from a checkpoint in its next job, and another job is asked for
    # when a node is lost and no spare one is left. false: neither; with cluster=array a job that ends is then replaced
    # by a new one.
    requeue: bool = True
    # Array mode: jobs of other kinds, as [{groups: 2-7, partition: cheap, time: "4:00:00"}].
    ranges: list[Range] = field(default_factory=list)
    # Nodes beyond what the groups need; a group whose node is lost moves to one.
    spare_nodes: int = limited(0, 0, 10_000)
    # So long before its time limit a job is left; the run saves a checkpoint if it ends with it. Where groups have jobs
    # of their own, the next one is asked for 900 s before the limit, or twice this if that is longer (but not before
    # half of the time is over).
    signal_s: int = limited(120, 1, MAX_TIME)
    # Lines of bash before the controller starts, as `module load cuda`. One that fails ends the job; `; true` after it
    # lets it go on. A file that is sourced need only be readable.
    setup: list[str] = field(default_factory=list)
    # Further options of sbatch by their own names, as cluster.sbatch.qos=high; so are constraint, exclude, nodelist,
    # reservation, switches and segment. true is an option without value, false takes one back
    # (gpus-per-node=false: GPUs are no GRES); any other value is text.
    sbatch: dict[str, Option] = field(default_factory=dict)
    srun: list[str] = field(default_factory=list)  # further arguments of the srun of every group
    # The network of the run: ib0, or several names in order, as [ib0,eth0], of which each node takes the first that it
    # has. Nodes announce the address of the interface, listen there alone, and Gloo and NCCL use it. auto: that of the
    # node's name, or if this is no use to others, as 127.0.1.1, that of the route to the controller. null: names, and
    # Gloo's and NCCL's own choice. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are kept if they are set (job.env).
    interface: str | list[str] | None = AUTO
    # The image in which the workers run, where Slurm has pyxis: a path, as /images/train.sqsh, or REGISTRY#IMAGE:TAG.
    # It needs Python, torch and torchft; ftslurm is the run's copy. job.python is then the image's (default: python3).
    container_image: str | None = None
    # Further folders of the node for the container, as /data or /data/set1:/data:ro. The run directory, the working
    # directory, the script's folder and checkpoint.dir are mounted anyway, at the same path.
    container_mounts: list[str] = field(default_factory=list)
    # job: the controller runs in a Slurm job (cluster=slurm: the run's; cluster=array: one of its own with one CPU).
    # here: it runs below this process (cluster=slurm: inside an allocation that you hold).
    controller: Literal["job", "here"] = "job"


@dataclass
class LighthouseConfig:
    """The Lighthouse: it decides which groups take the next step together."""

    # ftslurm: our own; the controller tells it of every death, and it gives no quorum to groups that lack the
    # training's state, or are ahead of it. torchft: the stock one, which learns of deaths by silence and gives any
    # quorum, for scripts whose steps do not rise one by one. none: no quorum, each group is restarted by itself (a
    # parameter server and its workers, or groups that have nothing in common).
    kind: Literal["ftslurm", "torchft", "none"] = "ftslurm"


@dataclass
class TorchftConfig:
    """torchft's managers and process groups."""

    # One collective, commit vote, or fetch while healing (TORCHFT_TIMEOUT_SEC, which torchft reads as an integer).
    timeout_s: int = limited(60, 1, MAX_TIME)
    # What averages the tensors between groups: gloo (through the CPU and TCP), nccl (from GPU to GPU), baby-nccl (the
    # same in a process of its own, which can be killed if NCCL hangs), native (torch's own process groups, from torch
    # 2.14 and torchft 0.3 on). auto: nccl if groups have GPUs, else gloo. The script makes it: it gets the value in
    # FTSLURM_PROCESS_GROUP, which the examples follow.
    process_group: Literal["auto", "gloo", "nccl", "baby-nccl", "native"] = "auto"
    # How a group that comes back gets the state from a live one: tcp (several streams, each after a proof that it is
    # of this run) or process_group (torchft's PGTransport: what averages the tensors, with NCCL from GPU to GPU). A
    # transport that the script gives its Manager stays.
    transport: Literal["tcp", "process_group"] = "tcp"
    # Who waits for the state of a group that comes back. blocking: all groups, until it is copied. beside: nobody; the
    # group keeps the averaged gradients meanwhile, applies them to the state when that has come, and counts when its
    # digest is that of the others. For scripts with torchft's Optimizer; others heal by blocking, and a line says why.
    heal: Literal["blocking", "beside"] = "blocking"


@dataclass
class RestartConfig:
    """When a group that failed is launched again."""

    # Restarts of one group within an hour; after one more failure it is given up. 0: it is never launched again.
    max_per_group: int = limited(5, 0)
    # The wait before the second restart; it doubles with each later one, up to a minute. The first has none.
    backoff_s: float = limited(1.0, 0, MAX_TIME)
    # What to do when all groups are down and ftslurm.checkpoint has saved no complete checkpoint. fail: end the run.
    # checkpoint: start all groups, because the script resumes from a format of its own in checkpoint.dir; the run still
    # fails if that folder is empty.
    on_state_loss: Literal["fail", "checkpoint"] = "fail"


@dataclass
class HealthConfig:
    """Time limits after which something counts as lost, hung or too slow."""

    # A node that is silent for so long, and that no probe reaches, is lost; after half of it if nothing answers at its
    # slurmd's port, not even the kernel. Heartbeats come ten times as often, and at least once a second. After six
    # times as long without its controller a worker ends itself.
    lost_after_s: float = limited(10.0, 1, MAX_TIME)
    # From launch until the script runs in every worker of the group.
    start_timeout_s: float = limited(600.0, 1, MAX_TIME)
    # A group that is behind the others and has not moved for so long is hung and launched again; 0: off. auto: learnt
    # from the steps of this run. A number must be longer than the longest pause of a single group (evaluation, a
    # checkpoint), and than a heal.
    hang_after_s: float | Literal["auto"] = limited(AUTO, 0, MAX_TIME)
    # Steps (syncs of LocalSGD and DiLoCo) from one comparison of the groups to the next: all must have the same weights
    # and the same state of the optimizer, bit by bit. 0: off. auto: 100 if that costs less than 1 %; groups that differ
    # are told, and not ended, since this may be what the script does. The page "silent-errors" has more.
    compare_every: int | Literal["auto"] = limited(AUTO, 0)
    # What is compared: patterns of the names in the state that the Manager heals others with, as [default.model.*].
    # Default: the weights that an optimizer of torch trains, and their state in it.
    compare_parts: list[str] = field(default_factory=list)
    # What to do with the floating-point buffers of modules, as BatchNorm's running statistics: groups compute them from
    # their own data, and evaluate different models. report: warn if they differ while the weights are equal. average:
    # over the groups in each step, as far as the Manager heals others with them. ignore: accept it.
    buffers: Literal["report", "average", "ignore"] = "report"
    # What to do if groups differ, and no majority shows which are wrong (there are two, say). warn: tell people, train
    # on. stop: end the run.
    on_divergence: Literal["warn", "stop"] = "warn"
    # A group whose own part of a step takes more than 1.3 times as long as the others' (the median of 50 steps), so
    # that all wait for it, is told. drain: it also leaves its node, which gets nothing any more, once there is another.
    on_slow: Literal["warn", "drain"] = "warn"
    # Commands that run one after the other on each node before the first worker there, and again once a group has died
    # of hardware there: [[ftslurm-preflight]], [[/opt/site/check, --quick]]. A node on which one ends with another exit
    # code than 0 is left out; so is one where they take more than two minutes. One that the first nodes cannot run at
    # all ends the run. `ftslurm help admin` has more.
    preflight: list[str | list[str]] = field(default_factory=list)


@dataclass
class StandbyConfig:
    """Warm standbys: steps that have imported everything and wait to become the next attempt of a failed group."""

    # each: one beside each group, on the group's own nodes. auto: the same, where they have memory to spare once the
    # group trains. A number: so many for the whole run, on spare nodes first (cluster.spare_nodes), then beside groups.
    count: int | Literal["auto", "each"] = limited(AUTO, 0, MOST_STANDBYS)
    imports: list[str] = field(default_factory=list)  # further modules to import early, as transformers


@dataclass
class CheckpointConfig:
    """Checkpoints. Scripts get these values in FTSLURM_CHECKPOINT_* variables; ftslurm.checkpoint follows them."""

    # A folder that all nodes share, or an object store that fsspec knows, as s3://bucket/folder (`pip install
    # 'ftslurm[s3]'`). Default: checkpoints/ in the run directory.
    dir: str | None = path()
    every: int = limited(0, 0)  # steps between two checkpoints; 0: only when one is asked for
    keep: int = limited(3, 0)  # newest checkpoints to keep; 0: all


@dataclass
class LogsConfig:
    """The logs of the run: rank-N.log, step.log, lighthouse.log, controller.log."""

    # Size limit of each log in MiB; 0: none. A longer log keeps its first 256 KiB and its last 8 MiB (a quarter of the
    # limit if that is less), with a line between them that tells how much was dropped. Sizes are checked once a second.
    max_mb: int = limited(1024, 0)


@dataclass
class StopConfig:
    """How the run is stopped."""

    grace_s: float = limited(10.0, 0, MAX_TIME)  # between SIGTERM to the scripts and SIGKILL


@dataclass
class HookConfig:
    """A command that is told of events."""

    command: str | list[str] = MISSING  # its arguments, as [./mail.sh, --to, me]
    events: list[str] = field(default_factory=list)  # of the journal, as [run_finished]; default: those of interest
    stream: bool = False  # it is kept, gets a line for each event, and answers it with one, empty if all is well


@dataclass
class HooksConfig:
    """Commands and classes that are told of the run's events, by a process beside the controller."""

    # Commands that get events as JSON on their standard input: [[./notify.sh, --chat]]. A command is a list of
    # arguments, and gets the events of people's interest, which the page "running" lists; or a mapping, for events of
    # its own, which may be any of the journal: {command: [./mail.sh], events: [run_finished]}. With `stream: true` it
    # is kept and answers each line with one, empty if all is well. One that takes longer than 10 s for an event is
    # killed.
    on_event: list[str | list[str] | HookConfig] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)  # subclasses of ftslurm.RunCallback: [my_package.MyCallback]


@dataclass
class MetricsConfig:
    """Metrics for Prometheus; off unless one of the first two is set."""

    # A file *.prom in the folder of node_exporter's textfile collector; it is written every 15 s.
    textfile: str | None = path()
    # Serve them on the controller's node: HOST:PORT on loopback, as 127.0.0.1:9400 (all users of the node can read
    # it), or unix:PATH, a socket for you alone; unix: is a socket in the run directory.
    listen: str | None = None


@dataclass
class Fault:
    """One fault of a drill."""

    kind: str = "kill"  # kill, term, stop, corrupt (one rank); node, cancel (its Slurm step); lighthouse
    group: int = 0  # the fault happens when this group reaches the step
    at: float = MISSING  # a step (1 or more), or a fraction of job.total_steps (below 1)
    rank: int = 0  # of the group; for kind=node its node is meant


@dataclass
class FaultsConfig:
    """Drills: real faults on purpose."""

    plan: list[Fault] = field(default_factory=list)  # [{kind: kill, group: 1, at: 50}]: one fault each


@dataclass
class Internal:
    """What the program itself notes in a run's config.yaml. No setting."""

    parent: str | None = None  # the directory of the run that this one resumes
    sweep: str | None = None  # the sweep that the run belongs to: sweep-TIME-RANDOM
    requeues: str | None = None  # where the script requeues its job: FILE:LINE
    pilots: str | None = None  # array mode: id of the array, submitted by hand, whose tasks are the pilots


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
    internal: Internal = field(default_factory=Internal)
    follow: bool | None = None  # show the run until it ends; default: on a terminal, and always for a local run

    @property
    def local(self) -> bool:
        """Whether all nodes are this machine."""
        return self.cluster.kind == "local"

    @property
    def one_job(self) -> bool:
        """Whether the nodes are those of the controller's job, and of satellites for groups without a place there."""
        return self.cluster.kind in ONE_JOB

    @property
    def job_per_group(self) -> bool:
        """Whether all nodes come from pilots, jobs of the groups' own."""
        return self.cluster.kind in JOB_PER_GROUP

    @property
    def independent(self) -> bool:
        """Whether groups have no quorum: none waits for another, heals from it, or is too late once it finished."""
        return self.lighthouse.kind == "none"

    @property
    def heartbeat_s(self) -> float:
        """How often controller and guards send a heartbeat."""
        return min(1.0, self.health.lost_after_s / 10)

    @property
    def orphan_after_s(self) -> float:
        """After how long without its controller a worker ends itself."""
        return 6 * self.health.lost_after_s

    @property
    def silent_after_s(self) -> float:
        """After how much silence of a group the Lighthouse forms a quorum without it.

        The controller tells our own Lighthouse of each death, so this matters only when a node vanishes. A machine that
        stalls for less costs nothing. The stock Lighthouse learns of each death by silence, and survivors stall for
        that long: 1.07 s at 1 s, 5.15 s at 5 s (benchmarks/lighthouse_timing.py). Neither has dropped a healthy group
        in benchmarks/false_evictions.py.
        """
        stock, lost_s = self.lighthouse.kind == "torchft", self.health.lost_after_s
        return lost_s / 10 if stock else max(min(LEAST_SILENCE_S, lost_s / 2), 0.3 * lost_s)

    @property
    def late_after_s(self) -> float:
        """How long a quorum waits for a healthy group that is not ready."""
        return self.job.longest_step_s / 6

    @property
    def poll_s(self) -> float:
        """How often Slurm is asked about the run's jobs, if there are others than the controller's."""
        return min(15.0, 1.5 * self.health.lost_after_s)

    @property
    def quorum_timeout_s(self) -> float:
        """After how long without a quorum torchft ends a group."""
        return max(self.job.longest_step_s, self.health.lost_after_s)

    @property
    def join_timeout_s(self) -> float:
        """From the start of its script to a group's first committed step, while others commit."""
        return max(1800.0, 2 * self.quorum_timeout_s)

    @property
    def first_step_s(self) -> float:
        """After how long without a step of any group a warning tells what each rank does; again after twice that."""
        return self.job.longest_step_s + min(60.0, self.job.longest_step_s)

    @property
    def hang_least_s(self) -> float:
        """The least that health.hang_after_s=auto becomes inside a step; between two steps it is twice that."""
        return max(1.5 * self.torchft.timeout_s, min(300.0, 5 * self.torchft.timeout_s))


def members(text: str) -> range:
    """Return the group ids of a range: "2", "2-5", or "2-" for all from 2 on; of CONTROLLER none.

    Raises:
        ValueError: it is not a range.
    """
    if text == CONTROLLER:
        return range(0)
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


Place: TypeAlias = ClusterConfig | Range  # what says which nodes jobs ask for
OWN_OPTIONS = ("partition", "account", "time")  # of sbatch, that are settings of their own


def sbatch_options(place: Place) -> dict[str, Any]:
    """Return the options of sbatch that a place of the settings names, by their names."""
    return {
        **{name: getattr(place, name) for name in OWN_OPTIONS if getattr(place, name) is not None},
        **{name.replace("_", "-"): value for name, value in place.sbatch.items()},
    }


def set_sbatch_option(place: Place, name: str, value: Any) -> None:
    """Ask for an option of sbatch."""
    if name in OWN_OPTIONS:
        setattr(place, name, value)
    else:
        place.sbatch[name] = value


def slurm_knows_gpus(config: Config) -> bool:
    """Return whether Slurm is asked for GPUs; no (cluster.sbatch.gpus-per-node=false): the nodes have them anyway."""
    return sbatch_options(config.cluster).get("gpus-per-node") is not False


def script_arguments(args: list[str] | dict[str, Any] | None) -> list[str]:
    """Return the script's arguments: a list as it is; {lr: 0.1, amp: true, note: null} becomes --lr 0.1 --amp.

    A mapping inside a mapping, as {optimizer: {lr: 0.1}}, becomes --optimizer.lr 0.1.
    """
    if not isinstance(args, dict):
        return [str(one) for one in args or ()]
    out: list[str] = []
    for key, value in args.items():
        if isinstance(value, dict):
            out += script_arguments({f"{key}.{inner}": of for inner, of in value.items()})
        elif value is not None and value is not False:
            values = value if isinstance(value, list) else [] if value is True else [value]
            out += [f"--{key}", *map(str, values)]
    return out


def words(setting: str | list[str] | None) -> list[str]:
    """Return the words of a setting that may be one word or a list of them."""
    return [setting] if isinstance(setting, str) else setting or []


def interpreter(job: JobConfig, default: str) -> list[str]:
    """Return the command that runs Python in the workers, with its prefix."""
    return words(job.python) or [default]


@cache
def shipped(folder: str) -> Path:
    """Return the path of conf/, docs/, examples/ or sbatch/: inside the package in a wheel, beside it in a checkout.

    A run's copy of ftslurm has conf/ alone, which is unpacked for this process.
    """
    package = Path(__file__).parents[1]
    if programs.ARCHIVE:
        from zipfile import ZipFile

        _unpacked.append(TemporaryDirectory(prefix="ftslurm-"))
        with ZipFile(programs.ARCHIVE) as archive:
            archive.extractall(_unpacked[-1].name, [name for name in archive.namelist() if name.startswith("conf/")])
        return Path(_unpacked[-1].name, folder)
    return package / folder if (package / folder).is_dir() else package.parent / folder


_unpacked = list[TemporaryDirectory[str]]()  # kept as long as this process


def nodes_needed(config: Config) -> int:
    """Return the nodes of the allocation: those of the groups, groups.per_node to a node, and the spare ones.

    Groups that share a node share all their nodes: a group has the same slot on each of its nodes. On Slurm standbys
    add none (they use spare nodes or those of groups), and groups that are added later get jobs of their own. On this
    machine, where a node is only a name, each has nodes of its own.
    """
    groups = config.groups
    standbys = fixed_standbys(config) if config.local else 0
    count = most_groups(config) if config.local else groups.count
    return groups.nodes * (-(-count // groups.per_node) + standbys) + config.cluster.spare_nodes


def fixed_standbys(config: Config) -> int:
    """Return how many standbys the run has from its start, for any group: 0 if each group may have one of its own."""
    return 0 if config.standby.count in (AUTO, EACH) else int(config.standby.count)


def standby_each(config: Config) -> bool:
    """Return whether each group may have a standby of its own. auto leaves it out where none could take over."""
    auto = config.standby.count == AUTO and config.restart.max_per_group > 0 and not config.job_per_group
    return auto or config.standby.count == EACH


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
