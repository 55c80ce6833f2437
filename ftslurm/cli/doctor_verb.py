"""`ftslurm doctor`: check this machine, Slurm and some nodes, one line a check with its fix."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from ftslurm.checks import node_session, slurm_facts
from ftslurm.checks.finding import Finding, Level, fail, ok, warn
from ftslurm.checks.slurm_verdicts import check_slurm
from ftslurm.cli.interrupts import Interrupts
from ftslurm.config.schema import Config, sbatch_options
from ftslurm.errors import Distrusted, EnvironmentProblem
from ftslurm.security import owned_files
from ftslurm.slurm import client, commands, sbatch_variables
from ftslurm.slurm.hosts import expand_hosts

NOT_OF_SRUN = ("time", "segment", "clusters")  # or not for a job of a few seconds
NO_CONFIGURATION = "Could not establish a configuration source"  # a laptop or a container with Slurm's programs


def main(args: argparse.Namespace) -> int:
    """Print the findings. Return 1 if something fails.

    Raises:
        EnvironmentProblem: there is no such partition, or the folder cannot be written.
    """
    if args.site:
        print(slurm_facts.site_file(args.partition))
        return 0
    found = list[Finding]()
    with Interrupts() as interrupts:
        interrupts.heed()  # so that the job and the folder go
        for finding in _findings(args):
            found.append(finding)
            if not args.json:
                print(finding, flush=True)
    counts = {level.value: sum(finding.level is level for finding in found) for level in Level}
    if args.json:
        print(json.dumps({"checks": [asdict(one) for one in found]} | counts, indent=2))
    else:
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    return int(counts["fail"] > 0)


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings, as they come.

    Raises:
        EnvironmentProblem: as for `main`.
    """
    root = Path(os.path.abspath(os.path.expanduser(args.root)))  # noqa: PTH100 links stay links
    config, partition, srun = Config(), args.partition, args.srun
    if not partition and not srun:  # as a run does without these settings
        notes = sbatch_variables.take(config, os.environ)
        found = sbatch_options(config.cluster)
        partition = found.pop("partition", None)
        srun = [f"--{name}={value}" for name, value in found.items() if name not in NOT_OF_SRUN]
        yield from (ok("variables", note) for note in notes)
    partitions, why_not = client.partitions()
    places = dict[str, list[str]]()
    together = list[str]()  # the command line for several nodes
    if partitions:
        slurm = slurm_facts.ask_slurm(partition, partitions)
        try:
            nodes = expand_hosts(args.nodes) if args.nodes else [""]
        except ValueError as error:
            raise EnvironmentProblem(f"--nodes {args.nodes}: {error}") from error
        places = {node or "a node": slurm_facts.srun(slurm, node, srun) for node in nodes}
        together = slurm_facts.srun(slurm, ",".join(nodes), srun)
        count = len(nodes) if args.nodes or slurm.value("TotalNodes") in ("", "0", "1") else 2
        yield from check_slurm(slurm)
    elif args.nodes or args.partition or args.srun:
        raise EnvironmentProblem(f"--nodes, --partition and --srun need Slurm, but {why_not}")
    else:
        finding = fail if client.installed() and NO_CONFIGURATION not in why_not else warn
        yield finding(
            "slurm",
            f"{why_not}: only this machine is looked at",
            "on a cluster, log in where sbatch works; in a container, mount Slurm's configuration",
        )
    try:
        owned_files.check_way(root, [])
        yield ok("trust", f"{root}: no other user can replace your runs")
    except Distrusted as why:
        yield warn("trust", str(why), "set run.trust=[NAME] for those you trust, or run.root to a folder of your own")
    place = [f"--partition={partition}"] if partition else []
    submit = commands.try_submission(*place, *srun, "--wrap=true")
    tried = [srun, submit if places and client.call(submit).ok else []]
    there = next(path for path in (root, *root.parents) if os.path.isdir(path))
    try:
        scratch = TemporaryDirectory(prefix=".ftslurm-doctor-", dir=there, ignore_cleanup_errors=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"{there} cannot be written ({error.strerror}): set --root to a shared folder of your own"
        ) from error
    with scratch as folder:
        for name, prefix in (places or {"this machine": []}).items():
            yield from node_session.look(name, prefix, args.python, Path(folder), tried, args.wait)
        if together and count > 1:
            yield from node_session.connect(count, together, args.python, Path(folder), args.wait)
