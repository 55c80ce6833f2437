"""Asks Slurm what doctor needs to know of it."""

from __future__ import annotations

import getpass
import shutil
import time
from collections.abc import Mapping, Sequence

from ftslurm.checks.slurm_verdicts import SlurmFacts, read_accounts, read_records, read_settings
from ftslurm.config import site
from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import UNKNOWN, Partition

ACCOUNT = ("Account", "Partition", "MaxJobs", "MaxSubmit", "GrpTRES", "MaxTRES", "QOS")

QOS = ("Name", "MaxWall", "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU", "GrpTRES", "Preempt", "PreemptMode")


def ask_slurm(partition: str | None, rows: Sequence[Partition]) -> SlurmFacts:
    """Ask Slurm about itself; `rows` are those of sinfo.

    Raises:
        EnvironmentProblem: there is no such partition, or Slurm does not answer.
    """
    begun = time.monotonic()
    config = read_settings(_answer(*commands.SETTINGS))
    took = time.monotonic() - begun
    name = partition or next((row.name for row in rows if row.default), None)
    chosen = read_records(_answer(*commands.records("partition", name))) if name else []
    reservations = read_records(client.call(commands.records("reservation")).out)
    accounts = _asked(config, "association", ACCOUNT, f"where user={getpass.getuser()}")
    names = {name for one in accounts for name in one["QOS"].split(",") if name}
    qos = _asked(config, "qos", QOS, f"where name={','.join(sorted(names))}") if names else []
    return SlurmFacts(config, chosen[0] if chosen else None, rows, took, reservations, accounts, qos)


def site_file(partition: str | None) -> str:
    """Return a site's file that fits the cluster.

    Raises:
        EnvironmentProblem: there is no Slurm, or no such partition.
    """
    rows, why_not = client.partitions()
    if not rows:
        raise EnvironmentProblem(f"--site needs Slurm, but {why_not}")
    slurm = ask_slurm(partition, rows)
    time, nodes = slurm.value("MaxTime"), slurm.value("TotalNodes")
    most = [f"groups.count: {nodes}"] if nodes.isdecimal() else []
    most += [f"cluster.time: {time}"] if time != "UNLIMITED" and time else []
    name = slurm.value("PartitionName")
    return "\n".join(
        (
            f"# {site.PLACE}: root's, writable by nobody else. ftslurm help admin",
            f"defaults: {{{f'cluster.partition: {name}' if name else ''}}}",
            f"most: {{{', '.join(most)}}}",
            "least: {}",
            "fixed: {}",
            "words: ask your administrator",
            "controller_on_login_nodes: false",
        )
    )


def srun(slurm: SlurmFacts, node: str, extra: Sequence[str]) -> list[str]:
    """Return the command line of the job on one node ("": any), with one GPU where it is sure to have some.

    Args:
        extra: further options.
    """
    name = (slurm.chosen or {}).get("PartitionName", "")
    have = [0 < row.gpus < UNKNOWN for row in slurm.rows if row.name == name]
    return commands.srun_alone(name, node, all(have) if node else any(have), extra)


def _answer(*command: str) -> str:
    answer = client.call(command)
    if not answer.ok:
        raise EnvironmentProblem(f"{' '.join(command)}: {answer.text}")
    return answer.out


def _asked(config: Mapping[str, str], what: str, fields: Sequence[str], where: str) -> list[dict[str, str]]:
    if config.get("AccountingStorageType") != "accounting_storage/slurmdbd" or not shutil.which("sacctmgr"):
        return []
    shown = f"format={','.join(f'{name}%200' for name in fields)}"
    answer = client.call(f"sacctmgr --parsable2 --noheader show {what} {where} {shown}".split())
    return read_accounts(answer.out, fields) if answer.ok else []
