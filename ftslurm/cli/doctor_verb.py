"""`ftslurm doctor`: check this machine, Slurm and some nodes, one line a check with its fix."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from ftslurm.checks import node_session, node_verdicts, slurm_facts
from ftslurm.checks.finding import Finding, Level, fail, ok, rows, warn
from ftslurm.checks.slurm_verdicts import SlurmFacts, check_slurm
from ftslurm.cli.parser import Parser
from ftslurm.errors import Distrusted, EnvironmentProblem
from ftslurm.security import owned_files
from ftslurm.slurm import client, commands

HELP = """\
A short job looks at a node of the partition (or at each of --nodes): python, torch, torchft, GPUs, network, clock, and
how the folder of runs behaves between that node and this machine. Without Slurm only this machine is looked at.

Exit code: 0 nothing fails, 1 something does, 2 bad arguments. `ftslurm help admin` explains each check.
"""


def main(words: list[str]) -> int:
    """Print the findings. Return 1 if something fails.

    Raises:
        EnvironmentProblem: there is no such partition or node, or the folder cannot be written.
    """
    parser = _parser()
    args = parser.parse_args(words)
    if args.wait <= 0:
        parser.error("--wait: seconds above 0")
    found = list[Finding]()
    for finding in _findings(args):
        found.append(finding)
        if not args.json:
            fix = f"; fix: {finding.fix}" if finding.fix else ""
            print(f"{finding.level.value:<4}  {finding.check:<15} {finding.what}{fix}", flush=True)
    counts = {level.value: sum(finding.level is level for finding in found) for level in Level}
    if args.json:
        print(json.dumps({"checks": rows(found)} | counts, indent=2))
    else:
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    return int(counts["fail"] > 0)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ftslurm doctor",
        description="Check this machine, Slurm and its nodes for what will hurt a training.",
        epilog=HELP,
    )
    add = parser.add_argument
    add("--nodes", metavar="LIST", help="look at each of these nodes: a,b or n[1-4]")
    add("--partition", metavar="NAME", help="of the job (default: the default partition)")
    add("--root", default="runs", metavar="DIR", help="where run directories lie (default: runs)")
    add("--python", default=sys.executable, metavar="CMD", help="the interpreter of your jobs (job.python)")
    add("--gpus", type=int, metavar="N", help="GPUs of the job (default: 1 where Slurm knows GPUs)")
    add("--srun", default="", metavar="OPTIONS", help="more options: --srun='--account=a --qos=b'")
    add("--wait", type=float, default=300.0, metavar="S", help="for the job to start (default: 300)")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings, as they come.

    Raises:
        EnvironmentProblem: as for `main`.
    """
    try:
        python, extra = shlex.split(args.python), shlex.split(args.srun)
    except ValueError as error:
        raise EnvironmentProblem(f"--python or --srun: {error}") from error
    root = Path(os.path.abspath(Path(args.root).expanduser()))  # noqa: PTH100 links stay links
    partitions, why_not = client.partitions()
    slurm, places = None, dict[str, list[str]]()
    if partitions:
        slurm = slurm_facts.ask_slurm(args.partition, partitions)
        nodes = slurm_facts.known_nodes(args.nodes, slurm) if args.nodes else [""]
        places = {node or "a node": slurm_facts.srun(slurm, node, args.gpus, extra) for node in nodes}
        yield from check_slurm(slurm)
    elif args.nodes or args.partition:
        raise EnvironmentProblem(f"--nodes and --partition need Slurm, but {why_not}")
    else:
        finding = fail if client.installed() else warn
        yield finding("slurm", f"{why_not}: only this machine is looked at", "on a cluster, log in where sbatch works")
    try:
        owned_files.check_way(root, [])
        yield ok("trust", f"{root}: no other user can replace your runs")
    except Distrusted as why:
        yield warn("trust", str(why), "set run.trust=[NAME] for those you trust, or run.root to a folder of your own")
    place = [f"--partition={args.partition}"] if args.partition else []
    submit = commands.try_submission(*place, *extra, "--wrap=true")
    tried = {"options": extra, "submit": submit if places and client.call(submit).ok else []}
    with (
        ThreadPoolExecutor(max(1, len(places))) as pool,
        node_session.scratch_folder(root) as folder,
        node_session.sessions_on(places or {"this machine": []}, python, folder, tried) as sessions,
    ):
        yield from _look(sessions, args.wait, pool, slurm)


def _look(
    sessions: Sequence[node_session.NodeSession], wait_s: float, pool: ThreadPoolExecutor, slurm: SlurmFacts | None
) -> Iterator[Finding]:
    """Yield what is found on each node, and whether each reaches the one before it."""
    ranges = dict[str, str]()
    with suppress(metadata.PackageNotFoundError):
        wanted = map(Requirement, metadata.requires("ftslurm") or [])
        ranges = {one.name: str(one.specifier) for one in wanted}
    several = slurm is not None and not slurm.one_machine

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    for node in pool.map(lambda session: session.look(wait_s, tell), sessions):
        yield from node_verdicts.check_node(node, ranges, several, slurm is not None)
    there = [session for session in sessions if session.known.place]
    for i, session in enumerate(there):
        if there[i - 1] is not session:
            session.reach(there[i - 1].known)
            yield from node_verdicts.check_reach(session.known)
