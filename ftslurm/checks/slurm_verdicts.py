"""Checks of Slurm's settings: what Slurm says of itself -> findings. Pure.

Which setting hurts, and how, was measured on Slurm 22.05.8 and 24.11.5; `ftslurm help admin` has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ftslurm.checks.finding import Finding, fail, ok, warn
from ftslurm.slurm.parse import Partition, partition_names, read_rows

OLDEST = (22, 5)
ADMIN = "ask your Slurm administrator"
PORTS_OF_SRUN, PORTS_BESIDE = 6, 3  # of a group: its srun, and that of its next attempt; of the Lighthouse


@dataclass(frozen=True)
class SlurmFacts:
    """What Slurm says about itself, its partitions and this user."""

    config: Mapping[str, str]  # of `scontrol show config`
    chosen: Mapping[str, str] | None  # the partition that jobs of doctor use; None: none is named, and none the default
    rows: Sequence[Partition]  # of sinfo
    answer_s: float = 0.0
    reservations: Sequence[Mapping[str, str]] = ()  # of `scontrol show reservation`
    accounts: Sequence[Mapping[str, str]] = ()  # of `sacctmgr show association`
    qos: Sequence[Mapping[str, str]] = ()  # of `sacctmgr show qos`: those of the accounts

    def value(self, key: str) -> str:
        """Return a setting of Slurm or of the partition, "" if there is none."""
        found = (one.get(key, "") for one in (self.chosen or {}, self.config))
        return next((value for value in found if value not in ("", "(null)")), "")


def read_settings(text: str) -> dict[str, str]:
    """Parse `scontrol show config`: a setting in each line."""
    return dict(re.findall(r"^([^\s=]+) *= *(.*?) *$", text, re.MULTILINE))


def read_records(text: str) -> list[dict[str, str]]:
    """Parse `scontrol --oneliner show ...`: a record in each line, its fields separated by spaces."""
    rows = (dict(re.findall(r"([^\s=]+)=(\S*)", line)) for line in text.splitlines())
    return [row for row in rows if row]


def read_accounts(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Parse `sacctmgr --parsable2 --noheader show association` with these fields."""
    return [dict(zip(fields, row, strict=True)) for row in read_rows(text, len(fields))[0]]


def check_slurm(facts: SlurmFacts) -> list[Finding]:
    """Return the findings of all checks."""
    return [finding for check in CHECKS for finding in check(facts)]


def _number(text: str) -> int | None:
    found = re.match(r"\d{1,12}", text)
    return int(found[0]) if found else None


def _version(facts: SlurmFacts) -> Iterator[Finding]:
    text = facts.value("SLURM_VERSION")
    release = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if release < OLDEST:
        yield warn(
            "version", f"Slurm {text or '?'} is older than 22.05, the oldest that was tried", f"{ADMIN} to update"
        )
    else:
        yield ok("version", f"Slurm {text} (22.05, 24.11 and 26.05 were tried)")
    if facts.answer_s > 2:
        slow = f"slurmctld took {facts.answer_s:.1f} s to answer: launches and `status` wait as long"
        yield warn("reach", slow, f"{ADMIN} whether slurmctld is overloaded; poll it less (no `watch squeue`)")
    else:
        yield ok("reach", f"slurmctld answers in {facts.answer_s:.2f} s")


def _partition(facts: SlurmFacts) -> Iterator[Finding]:
    part = facts.chosen
    if part is None:
        names = partition_names(facts.rows)
        none = "there is no default partition: what chooses one for jobs that name none is not known here"
        yield warn("partition", none, f"if sbatch asks for one, set cluster.partition to one of: {names}")
        return
    name = part.get("PartitionName", "?")
    if part.get("State") != "UP":
        yield fail(
            "partition", f"{name} is {part.get('State')}: its jobs do not start", "set cluster.partition to another"
        )
    else:
        limits = ", ".join(f"{key}={part.get(key)}" for key in ("MaxTime", "DefaultTime", "MaxNodes"))
        yield ok("partition", f"{name}: {part.get('TotalNodes')} nodes; {limits}")


def _limits(facts: SlurmFacts) -> Iterator[Finding]:
    steps, tasks = _number(facts.value("MaxStepCount")), _number(facts.value("MaxArraySize"))
    if steps is not None and steps < 1000:
        few = f"MaxStepCount={steps}: a job can start no more steps, and each attempt of a group is one"
        yield fail("limits", few, f"{ADMIN} for Slurm's default, 40000; until then set cluster=array")
    elif steps is not None:
        yield ok("limits", f"MaxStepCount={steps} steps a job; MaxArraySize={tasks} (cluster=array: groups a run)")
    for one in facts.qos:
        said = ", ".join(f"{key} {value}" for key, value in one.items() if value and key != "Name")
        yield ok("limits", f"QOS {one.get('Name')}: {said or 'no limit of its own'}")
    for one in facts.accounts:
        said = ", ".join(f"{key} {value}" for key, value in one.items() if value and key != "Account")
        yield ok("limits", f"account {one.get('Account')}: {said or 'no limit of its own'}")
        if (_number(one.get("MaxSubmit", "")) or 99) < 3:
            few = f"account {one['Account']}: MaxSubmitJobs={one['MaxSubmit']}, so no job can replace a lost node"
            yield warn("limits", few, f"{ADMIN} for more, or set cluster.spare_nodes=1")
    if ports := re.fullmatch(r"([1-9]\d{0,4})-(\d{1,5})", facts.value("SrunPortRange")):
        most = (int(ports[2]) - int(ports[1]) + 1 - PORTS_BESIDE) // PORTS_OF_SRUN
        need = f"{PORTS_OF_SRUN} ports for each group and {PORTS_BESIDE}"
        if most < 50:
            few = f"SrunPortRange={ports[0]}: enough for {most} groups, which need {need}"
            yield warn("ports", few, f"{ADMIN} for {need}")


def _settings(facts: SlurmFacts) -> Iterator[Finding]:
    for key, worth, does, fix, fine in RULES:
        value = facts.value(key)
        found = re.match(worth, value)
        if said := does if found else fine:
            what = f"{value or 'not set'}: {said}"
            yield warn(key, what, fix) if found else ok(key, what)


def _gpus(facts: SlurmFacts) -> Iterator[Finding]:
    if not any(row.gpus for row in facts.rows):
        return
    devices, task = facts.value("ConstrainDevices"), facts.value("TaskPlugin")
    if "cgroup" not in task or devices == "no":
        why = f"TaskPlugin={task}, ConstrainDevices={devices or 'not set'}: jobs see the GPUs of other jobs"
        yield warn("cgroup", why, f"{ADMIN} for TaskPlugin=task/cgroup and ConstrainDevices=yes")
    else:
        yield ok("cgroup", f"TaskPlugin={task}: a job sees only its own GPUs")


def _maintenance(facts: SlurmFacts) -> Iterator[Finding]:
    for one in facts.reservations:
        if "MAINT" in one.get("Flags", ""):
            when = f"{one.get('Nodes')} from {one.get('StartTime')} to {one.get('EndTime')}"
            waits = f"{when}: a job whose time limit reaches into it waits until it is over"
            yield warn("maintenance", waits, "set cluster.time so that the job ends before it")


# What a setting of Slurm or of the partition does to a run: its name, how a value begins that hurts, what that does,
# what mends it, and what is said of any other value, if anything.
RULES = (
    (
        "PreemptMode",
        ".*(SUSPEND|GANG|CANCEL)",
        "a preempted job is suspended, and its groups look as lost as on a dead node; or it is cancelled, and its run "
        "ends",
        f"use a partition or QOS that is not preempted, or {ADMIN} for REQUEUE; with CANCEL cluster=array helps",
        "no job is preempted, or it is requeued then",
    ),
    (
        "JobRequeue",
        "0",
        "only jobs that ask for it are requeued; those of ftslurm do, an sbatch script may not",
        "keep `#SBATCH --requeue` in scripts of your own",
        "jobs are requeued after the loss of their node",
    ),
    (
        "ReturnToService",
        "0",
        "a node that was lost stays DOWN until an administrator resumes it",
        f"{ADMIN} for ReturnToService=1; until then set cluster.spare_nodes=1",
        "a lost node comes back by itself",
    ),
    (
        "SlurmdTimeout",
        "0",
        "Slurm never declares a silent node lost, so its job is never requeued",
        f"{ADMIN} for Slurm's default, 300",
        "until Slurm declares a node lost; ftslurm needs health.lost_after_s",
    ),
    (
        "ProctrackType",
        "(?!.*cgroup)",
        "processes outlive their step; with linuxproc, scancel of one array task reaches the sruns of others",
        f"{ADMIN} for ProctrackType=proctrack/cgroup",
        "no process outlives its step",
    ),
    (
        "AccountingStorageType",
        "$|.*none",
        "Slurm keeps no accounting: sacct cannot say how a job ended; ftslurm's journal still does",
        f"{ADMIN} for slurmdbd, or rely on `ftslurm status` and the journal",
        "sacct knows how jobs ended",
    ),
    (
        "AccountingStoreFlags",
        "(?!.*job_comment)|.*job_env",
        "sacct shows no comments, by which jobs are known to be ftslurm's; or it keeps the environment, with secrets",
        f"{ADMIN} for AccountingStoreFlags=job_comment, without job_env",
        "sacct shows whose jobs are ftslurm's, and keeps no environment",
    ),
    (
        "MinJobAge",
        r"[1-5]?[0-9]\b",
        "Slurm forgets an ended job before ftslurm may have seen why it ended",
        f"{ADMIN} for Slurm's default, 300",
        "",
    ),
    (
        "PrivateData",
        ".*(nodes|partitions)",
        "sinfo may hide nodes, so `plan` and checks may see too few",
        f"if a run is refused for too few nodes, {ADMIN}",
        "",
    ),
    (
        "SwitchType",
        ".*slingshot",
        "each step and job has a network of its own (VNI), so NCCL's libfabric plugin cannot connect groups",
        "set cluster=slurm and 'cluster.sbatch.network=\"job_vni,single_node_vni\"', and have the script keep the "
        "last of the numbers in SLINGSHOT_VNIS, the job's; or job.env.NCCL_NET=Socket",
        "",
    ),
)
CHECKS = (_version, _partition, _limits, _settings, _gpus, _maintenance)
